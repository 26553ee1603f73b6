// Command words reports words that the project does not use, with the term to write instead, and
// lines that are too long for a reader: one finding a line, as file:line. It checks the files of
// the current folder that git knows or would add, and exits with 1 if it finds any.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	findings, err := check()
	for _, f := range findings {
		fmt.Println(f)
	}
	if err == nil && len(findings) > 0 {
		err = fmt.Errorf("%d findings: rewrite them, or add an exception with its reason "+
			"to internal/words/rules.go", len(findings))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

func check() (findings []finding, err error) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
		"--deduplicate")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if slices.ContainsFunc(notOurs, func(part string) bool {
			return strings.Contains("/"+name, part)
		}) {
			continue
		}
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not yet in git
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(text, []byte{0}) {
			findings = append(findings, inFile(name, string(text))...)
		}
	}
	return findings, nil
}
