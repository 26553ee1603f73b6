package promptly

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEndless: an f that does not end makes the test binary fail, and is shown.
func TestEndless(t *testing.T) {
	const child = "PROMPTLY_CHILD"
	if os.Getenv(child) != "" {
		within(t, 10*time.Millisecond, endless)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEndless$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "panic: TestEndless: takes longer than 10ms for one input")
	assert.Contains(t, string(out), "promptly.endless")
}

func endless() {
	for {
		time.Sleep(time.Nanosecond)
	}
}

// TestPanic: f's own panic is that of the caller.
func TestPanic(t *testing.T) {
	assert.PanicsWithValue(t, "damaged", func() { Do(t, func() { panic("damaged") }) })
}
