package cli

import (
	"fmt"
	"io"
	"os"
)

// MaxInput is the size of the largest input file of a command without a limit of its own, in
// bytes.
const MaxInput = 64 << 20

// Read reads a file, or the standard input if name is "-", and returns a name for errors. It
// stops after max+1 bytes, so that the caller can tell a file that is too large.
func (a *App) Read(name string, max int64) (shown string, data []byte, err error) {
	in := a.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return name, nil, err
		}
		defer f.Close()
		in = f
	} else {
		name = "stdin"
	}
	data, err = io.ReadAll(io.LimitReader(in, max+1))
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return name, data, err
}
