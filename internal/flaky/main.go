// Flaky reads from its standard input what gotestsum has recorded of tests, and lists those that
// failed and then passed, with their output. It fails if there was a fault that no repetition
// excuses: a data race, a panic, a process that ended before its tests, or goroutines that a
// package leaves behind.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

// An event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// A test is a test or a package, as far as its present run.
type test struct {
	name   string
	output strings.Builder
	failed bool // or, of a package, one of its tests
}

// faulty matches a line of a fault that no repetition excuses.
var faulty = regexp.MustCompile(
	`^(WARNING: DATA RACE|panic: |fatal error: |signal: |goroutines left behind)|found unexpected goroutines`)

// run reads events, and writes the tests that failed and then passed.
func run(events io.Reader, out io.Writer) error {
	tests := map[string]*test{}
	find := func(name string) *test {
		if tests[name] == nil {
			tests[name] = &test{name: name}
		}
		return tests[name]
	}
	running := map[string][]string{} // by package, the tests that have started and not ended
	var flaky []*test
	var faults []string
	ended := func(pkg string) {
		if len(running[pkg]) > 0 {
			faults = append(faults, fmt.Sprintf("%s: ended before %s", pkg, strings.Join(running[pkg], ", ")))
		}
		delete(running, pkg)
	}
	for d := json.NewDecoder(events); d.More(); {
		var e event
		if err := d.Decode(&e); err != nil {
			return err
		}
		isPackage := e.Test == ""
		t := find(strings.TrimSpace(e.Package + " " + e.Test))
		switch e.Action {
		case "run":
			running[e.Package] = append(running[e.Package], e.Test)
		case "pass", "fail", "skip":
			running[e.Package] = slices.DeleteFunc(running[e.Package], func(name string) bool { return name == e.Test })
		}
		switch e.Action {
		case "output":
			t.output.WriteString(e.Output)
			if faulty.MatchString(e.Output) {
				faults = append(faults, t.name+": "+strings.TrimSpace(e.Output))
			}
		case "fail":
			switch {
			case !isPackage:
				t.failed, find(e.Package).failed = true, true
			case !t.failed:
				faults = append(faults, t.name+": failed beside its tests: "+t.output.String())
			}
		case "pass":
			if t.failed && !isPackage {
				flaky = append(flaky, t)
			}
			delete(tests, t.name)
		}
		if isPackage && (e.Action == "fail" || e.Action == "pass") {
			ended(e.Package)
			delete(tests, t.name)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(running)) {
		ended(pkg)
	}
	var list strings.Builder
	for i, t := range flaky {
		if i == 0 {
			list.WriteString("flaky:\n")
		}
		fmt.Fprintf(&list, "%s\n%s\n", t.name, t.output.String())
	}
	_, err := io.WriteString(out, list.String())
	if len(faults) > 0 {
		err = errors.Join(err, fmt.Errorf("no repetition excuses:\n%s", strings.Join(faults, "\n")))
	}
	return err
}
