// Table prints what the tests of make accuracy have measured, and writes it into a document. It
// exits with status 1 if a figure is out of its bounds.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/dispatchthrottle/throttle/tests/accuracy"
	"github.com/dispatchthrottle/throttle/tests/tables"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: table RESULTS DOCUMENT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(results, document string, out io.Writer) error {
	all, err := accuracy.Read(results)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("nothing was measured")
	}
	var table, text strings.Builder
	table.WriteString("| test | figure | measured | bound | tries |\n| --- | --- | --- | --- | --- |\n")
	fmt.Fprintln(&text, "TEST\tFIGURE\tMEASURED\tBOUND\tTRIES\t")
	broken := 0
	for _, r := range all {
		test := r.Package + " " + strings.TrimPrefix(r.Test, "TestAccuracy")
		measured, note := accuracy.Number(r.Measured), ""
		if !r.Holds() {
			broken++
			note = "out of bounds"
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\t%s\t%d\t%s\n", test, r.Figure, measured, r.Bound(), r.Tries, note)
		if note != "" {
			measured = "**" + measured + "**"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %d |\n", test, r.Figure, measured, r.Bound(), r.Tries)
	}
	aligned := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, err = io.WriteString(aligned, text.String())
	err = errors.Join(err, aligned.Flush(), tables.Write(document, "accuracy", []byte(table.String())))
	if broken > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d figures are out of their bounds", broken, len(all)))
	}
	return err
}
