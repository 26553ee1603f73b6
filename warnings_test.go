package throttle_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestWarnings(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte("s3cret"), 0o600))
		require.NoError(t, os.Chmod(name, mode))
		return name
	}
	private, public := file("private", 0o640), file("public", 0o644)
	for url, want := range map[string]string{
		"":                                                                     "",
		"memory:":                                                              "",
		"file:policies.yaml":                                                   "",
		"redis://10.0.0.5":                                                     "",
		"redis://:s3cret@127.0.0.1":                                            "",
		"redis://:s3cret@[::1]:6379":                                           "",
		"redis://:s3cret@localhost":                                            "",
		"rediss://:s3cret@10.0.0.5":                                            "",
		"redis://:s3cret@10.0.0.5?tls=true":                                    "",
		"redis://:s3cret@10.0.0.5?color=red":                                   "",
		"redis://:s3cret@10.0.0.5":                                             "redis://10.0.0.5:6379: the password goes over the network in plaintext",
		"redis://a@localhost.example":                                          "",
		"redis://:s3cret@localhost.example":                                    "redis://localhost.example:6379: the password",
		"etcd://a:s3cret@127.0.0.1,etcd.local":                                 "etcd://127.0.0.1:2379,etcd.local:2379: the password",
		"etcd://a@10.0.0.5?password-file=" + private:                           "etcd://10.0.0.5:2379: the password",
		"etcd://a@127.0.0.1?password-file=" + private:                          "",
		"etcd://a@127.0.0.1?password-file=" + public:                           public + ": mode 0644 lets others",
		"etcd://a@127.0.0.1?password-file=/does/not/exist":                     "",
		"redis+sentinel://127.0.0.1?master=m":                                  "",
		"redis+sentinel://:s3cret@127.0.0.1?master=m":                          "the password for servers elsewhere goes over",
		"redis+sentinel://:s3cret@127.0.0.1?master=m&tls=true":                 "",
		"redis+cluster://:s3cret@127.0.0.1":                                    "the password for servers elsewhere goes over",
		"redis+cluster://:s3cret@127.0.0.1?tls=true":                           "",
		"redis+sentinel://10.0.0.5?master=m&sentinel-password-file=" + private: "the password for the Sentinels goes over",
		"redis+sentinel://10.0.0.5?master=m&tls=true&sentinel-password-file=" + private:             "",
		"redis+sentinel://h?master=m&tls=true&sentinel-tls=false&sentinel-password-file=" + private: "the password for the Sentinels",
		"redis+sentinel://h?master=m&tls=true&sentinel-password-file=" + public:                     public + ": mode 0644",
	} {
		got := throttle.Warnings(url, url)
		if want == "" {
			assert.Empty(t, got, url)
		} else if assert.Len(t, got, 1, url) {
			assert.Contains(t, got[0], want)
			assert.NotContains(t, got[0], "s3cret")
		}
	}
}

// TestOpenWarns: a Limiter logs each warning once.
func TestOpenWarns(t *testing.T) {
	var log throttletest.Log
	lim, err := throttle.Open(t.Context(), "file:"+filepath.Join(t.TempDir(), "p.yaml")+"?create=true",
		"redis://:s3cret@redis.invalid", throttle.WithLogger(log.Logger()))
	require.NoError(t, err)
	require.NoError(t, lim.Close())
	assert.Equal(t, 1, strings.Count(log.String(), "in plaintext"), log.String())
	assert.NotContains(t, log.String(), "s3cret")
}
