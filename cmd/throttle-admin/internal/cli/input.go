package cli

import (
	"fmt"
	"io"
	"os"
)

// MaxInput bounds what a command reads of a file that it does not know the size of, in bytes.
const MaxInput = 64 << 20

// Read reads a file, or the standard input if it is named -, of at most so many bytes and one, and returns what to call it.
func (a *App) Read(name string, most int64) (called string, data []byte, err error) {
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
	data, err = io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return name, data, err
}
