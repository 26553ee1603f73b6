package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRun(t *testing.T) {
	const failed = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: late\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`
	const passed = `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`
	const running = `{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"run","Package":"p","Test":"TestC/sub"}
`
	const ends = `{"Action":"pass","Package":"p","Test":"TestC/sub"}
{"Action":"skip","Package":"p","Test":"TestC"}
`
	for name, c := range map[string]struct{ events, out, err string }{
		"nothing":         {"", "", ""},
		"well":            {passed, "", ""},
		"failed":          {failed, "", ""}, // gotestsum says so
		"flaky":           {failed + passed, "flaky:\np TestA\n    a_test.go:1: late\n=== RUN TestA\n\n", ""},
		"failed again":    {failed + failed, "", ""},
		"flaky, at last":  {failed + failed + passed, "flaky:", ""},
		"a race":          {`{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}` + "\n" + passed, "", "p TestA: WARNING: DATA RACE"},
		"goroutines":      {`{"Action":"output","Package":"p","Output":"goleak: x"}` + "\n" + `{"Action":"fail","Package":"p"}`, "", "p: failed beside its tests: goleak: x"},
		"a crash":         {`{"Action":"output","Package":"p","Test":"TestA","Output":"fatal error: all goroutines are asleep"}` + "\n" + failed + passed, "flaky:", "p TestA: fatal error"},
		"a leak":          {`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: found unexpected goroutines:"}` + "\n" + passed, "", "p TestA: a_test.go:1: found unexpected"},
		"a leak, too":     {failed + `{"Action":"output","Package":"p","Output":"found unexpected goroutines:\n"}` + "\n" + passed, "flaky:", "p: found unexpected goroutines"},
		"goroutines, too": {failed + `{"Action":"output","Package":"p","Output":"goroutines left behind:"}`, "", "p: goroutines left behind"},
		"killed":          {failed + `{"Action":"output","Package":"p","Test":"TestC","Output":"signal: killed\n"}` + "\n" + passed, "flaky:", "p TestC: signal: killed"},
		"an exit":         {running + failed + passed + running + ends + passed, "flaky:", "p: ended before TestC, TestC/sub"},
		"cut off":         {failed + passed + running, "flaky:", "p: ended before TestC, TestC/sub"},
		"ended":           {running + ends + failed + passed, "flaky:", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(c.events), &out)
			if c.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.err)
			}
			assert.True(t, strings.HasPrefix(out.String(), c.out), "%s", &out)
			assert.Equal(t, c.out == "", out.Len() == 0)
		})
	}
}
