package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
)

// Interactive reports whether somebody at a terminal can answer a question.
func (a *App) Interactive() bool { return isTerminal(a.Stdin) }

// Terminal reports whether results are shown on a terminal.
func (a *App) Terminal() bool { return isTerminal(a.Stdout) }

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // as services have it
	return err != nil || !os.SameFile(info, null)
}

// Confirm asks a question on Stderr, and returns nil if the answer is yes. It returns the cause of
// ctx's end if that comes first.
func (a *App) Confirm(ctx context.Context, question string) error {
	if _, err := fmt.Fprintf(a.Stderr, "%s [y/N] ", question); err != nil {
		return err
	}
	answer := make(chan string, 1)
	go func() { // may outlive the question: nothing ends a read of a terminal
		line, _ := bufio.NewReader(a.Stdin).ReadString('\n') // no answer is no
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(a.Stderr) // a failed write cannot be reported anywhere
		return context.Cause(ctx)
	case text := <-answer:
		if text == "y" || text == "yes" {
			return nil
		}
		return fmt.Errorf("nothing was changed: the answer %q is not yes", text)
	}
}
