package main

import (
	"io"
	"strings"
	"testing"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// FuzzArguments: whatever the arguments are, a command is found for them, and its flags and the
// number of its arguments are accepted or refused. It does not run.
func FuzzArguments(f *testing.F) {
	for _, line := range []string{
		"set-msg-rate public/default 1000 --for 1h", "namespaces public/default set-dispatch-rate -md 5 -bd=7 -dt",
		"explain kafka://a/b/c --subscription x -o json", "set cluster busy.mode=tchannel --dry-run", "--policies= -- get",
		"quota set tag:x total=1MiB", "completion bash", "-o", "simulate --seed", "help set",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		promptly.Do(t, func() {
			root := cli.NewRoot(&cli.App{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}, families...)
			cmd, rest, err := root.Find(policies.PulsarArgs(strings.Split(line, " ")))
			if err != nil {
				return
			}
			if err := cmd.ParseFlags(rest); err == nil {
				_ = cmd.ValidateArgs(cmd.Flags().Args())
			}
			_ = cmd.UsageString()
		})
	})
}
