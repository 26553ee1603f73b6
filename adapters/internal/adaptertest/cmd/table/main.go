// Command table writes docs/reference/adapters.md from the lines that adaptertest.Run appended, on
// stdin. It fails if a test has failed or is missing.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) (err error) {
	passed := map[[2]string]bool{} // by client and behaviour
	var clients []string
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 3 {
			return fmt.Errorf("%q: want client, behaviour, true or false", lines.Text())
		}
		if !slices.Contains(clients, fields[0]) {
			clients = append(clients, fields[0])
		}
		key := [2]string{fields[0], fields[1]}
		before, found := passed[key]
		passed[key] = (before || !found) && fields[2] == "true"
	}
	slices.Sort(clients)
	_, _ = fmt.Fprintf(out, "%s\n| behaviour | %s |\n|%s\n", head,
		strings.Join(clients, " | "), strings.Repeat(" --- |", len(clients)+1))
	for _, behaviour := range adaptertest.Names() {
		_, _ = fmt.Fprintf(out, "| %s |", behaviour)
		for _, client := range clients {
			cell := "passed"
			if !passed[[2]string{client, behaviour}] {
				cell = "**failed**"
				err = errors.Join(err, fmt.Errorf("%s: %s: failed, or not run", client, behaviour))
			}
			_, _ = fmt.Fprintf(out, " %s |", cell)
		}
		_, _ = fmt.Fprintln(out)
	}
	return errors.Join(err, lines.Err())
}

const head = `# What every adapter does

All adapters of brokers pass one suite, adapters/internal/adaptertest. ` + "`make behaviours`" + ` runs it and writes this
page. The tests of each adapter fail, too, if they leave goroutines behind.
`
