package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/services"
)

// TestSecurityDocument runs the commands of docs/security.md in their order. The program of its
// last block is then throttle-admin list.
func TestSecurityDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	etcd, redis := services.Etcd(t), services.RedisServer(t)
	host, port, _ := strings.Cut(redis.Addr, ":")
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		script.Write(block[1])
	}
	script.WriteString("throttle-admin list\n! throttle-admin set-msg-rate cluster 1\n")
	commands := strings.NewReplacer(
		"127.0.0.1:2379", etcd.Endpoint, "127.0.0.1:6379", redis.Addr,
		"-h 127.0.0.1 -p 6379", "-h "+host+" -p "+port,
	).Replace(script.String())
	cmd := exec.CommandContext(t.Context(), "sh", "-exc", commands)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, want := range []string{
		"User throttle-replica created", "Authentication Enabled", "OK\n", "revision 1000",
		"throttle-admin rights etcd --role admin",
	} {
		assert.Contains(t, string(out), want)
	}
}
