package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A finding is one fault of a line.
type finding struct {
	file string
	line int // from 1
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

type matcher struct {
	rule
	word  *regexp.Regexp
	right []*regexp.Regexp // the texts of its exceptions, in order
}

// in returns the words of a file's line that are not used.
func (m matcher) in(file, line string) (words []string) {
	for i, e := range m.except {
		if strings.HasPrefix(file, e.folder) {
			line = m.right[i].ReplaceAllString(line, "")
		}
	}
	return m.word.FindAllString(line, -1)
}

// inFile returns the findings of a file, by line.
func inFile(name, text string) (findings []finding) {
	lines := strings.Split(text, "\n")
	written, commented := lines, map[int]bool{}
	if strings.HasSuffix(name, ".go") {
		written, commented = proseOf(text, len(lines))
	}
	fenced := false
	for i, line := range lines {
		found := func(format string, args ...any) {
			findings = append(findings, finding{name, i + 1, fmt.Sprintf(format, args...)})
		}
		for _, m := range compiled {
			searched := line
			if m.rule.in == prose {
				searched = written[i]
			}
			for _, word := range m.in(name, searched) {
				found("%q: write %s", word, m.use)
			}
		}
		width := utf8.RuneCountInString(line)
		switch {
		case commented[i] && width > maxComment:
			found("a comment ends in column %d: at most %d", width, maxComment)
		case !strings.HasSuffix(name, ".md"):
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case strings.HasPrefix(line, "    "): // a command, which is copied as a whole
		case width > maxDocs && !fenced && !strings.HasPrefix(line, "|"):
			found("the line has %d columns: at most %d", width, maxDocs)
		}
	}
	return findings
}

// directives are the starts of comments that tools read, and that cannot be wrapped.
var directives = []string{"//go:", "//nolint:", "// Output: "}

// proseOf returns the comments and string literals of each line of a Go file, from index 0, and
// the lines with a comment that people read.
func proseOf(text string, lines int) (written []string, commented map[int]bool) {
	written, commented = make([]string, lines), map[int]bool{}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(text))
	s.Init(file, []byte(text), nil, scanner.ScanComments) // the compiler reports syntax errors
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return written, commented
		}
		if kind != token.COMMENT && kind != token.STRING {
			continue
		}
		first := file.Line(pos) - 1
		directive := slices.ContainsFunc(directives, func(start string) bool {
			return strings.HasPrefix(literal, start)
		})
		for i, part := range strings.Split(literal, "\n") {
			written[first+i] += " " + part
			commented[first+i] = commented[first+i] || kind == token.COMMENT && !directive
		}
	}
}
