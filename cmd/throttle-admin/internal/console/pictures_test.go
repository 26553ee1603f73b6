package console

import (
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPictures writes the pictures of the documentation to the folder THROTTLE_PICTURES, and those
// of other widths to THROTTLE_PICTURES_OTHERS: of a cluster in which something happens for two
// minutes.
func TestPictures(t *testing.T) {
	dir := os.Getenv("THROTTLE_PICTURES")
	if dir == "" {
		t.Skip("make pictures writes them")
	}
	w := newWorld(t)
	w.happen()
	widths := os.Getenv("THROTTLE_PICTURES_OTHERS")
	require.NoError(t, errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(widths, 0o755)))
	for name, path := range map[string]string{
		"overview": "/", "topic": topicPage, "history": "/history", "quotas": "/quotas", "health": "/health",
	} {
		for _, width := range []int64{360, 1280, 2560} {
			require.NoError(t, chromedp.Do(w.browser, chromedp.EmulateViewport(width, 800)))
			w.show(path)
			time.Sleep(4 * time.Second) // for what the page asks commands
			height := eval[int64](w, "Math.min(1100, document.documentElement.scrollHeight)")
			require.NoError(t, chromedp.Do(w.browser, chromedp.EmulateViewport(width, height)))
			time.Sleep(2 * time.Second)
			if file := filepath.Join(dir, name+".png"); width == 1280 {
				w.shoot(file)
			} else {
				w.shoot(filepath.Join(widths, fmt.Sprintf("%s-%d.png", name, width)))
			}
		}
	}
	w.shootTop(filepath.Join(dir, "top.png"))
}

// happen makes something happen for two minutes.
func (w *world) happen() {
	w.populate()
	time.Sleep(40 * time.Second)
	w.admin("set-msg-rate", orders, "200", "--as", "bob", "-m", "a load test")
	time.Sleep(40 * time.Second)
	w.admin("set-msg-rate", orders, "150", "--as", "ann", "-m", "150 is what billing bears")
	time.Sleep(40 * time.Second)
}

// shoot writes a picture of the page.
func (w *world) shoot(file string) {
	picture, err := chromedp.Run(w.browser, chromedp.CaptureScreenshot())
	require.NoError(w.t, err)
	assert.Less(w.t, len(picture), 200_000, file)
	require.NoError(w.t, os.WriteFile(file, picture, 0o644))
}

// shootTop writes a picture of throttle-admin top in a terminal of 100 columns.
func (w *world) shootTop(file string) {
	admin := filepath.Join(w.t.TempDir(), "throttle-admin")
	run := func(name string, args ...string) string {
		out, err := exec.Command(name, args...).CombinedOutput()
		require.NoError(w.t, err, "%s: %s", name, out)
		return string(out)
	}
	run("go", "build", "-o", admin, "github.com/dispatchthrottle/throttle/cmd/throttle-admin")
	socket := filepath.Join(w.t.TempDir(), "tmux")
	run("tmux", append([]string{"-S", socket, "new-session", "-d", "-x", "100", "-y", "14", admin, "top"}, w.flags...)...)
	defer run("tmux", "-S", socket, "kill-server")
	time.Sleep(5 * time.Second)
	screen := run("tmux", "-S", socket, "capture-pane", "-e", "-p")
	page := filepath.Join(w.t.TempDir(), "top.html")
	require.NoError(w.t, os.WriteFile(page, []byte(terminalPage(screen)), 0o600))
	require.NoError(w.t, chromedp.Do(w.browser, chromedp.EmulateViewport(860, 290), chromedp.Navigate("file://"+page)))
	w.shoot(file)
}

const dark, light = "#14171a", "#e6e8ea"

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// terminalPage writes what a terminal shows as a page.
func terminalPage(screen string) string {
	var b strings.Builder
	b.WriteString(`<meta charset="utf-8"><body style="margin:0;background:#14171a"><pre style="margin:12px;color:#e6e8ea;font:14px/1.3 monospace"><span>`)
	style := map[string]string{}
	for at, rest := 0, screen; ; {
		m := sgr.FindStringSubmatchIndex(rest[at:])
		if m == nil {
			b.WriteString(html.EscapeString(rest[at:]))
			break
		}
		b.WriteString(html.EscapeString(rest[at : at+m[0]]))
		setStyle(style, strings.Split(rest[at+m[2]:at+m[3]], ";"))
		b.WriteString("</span><span style='")
		for name, value := range style {
			fmt.Fprintf(&b, "%s:%s;", name, value)
		}
		b.WriteString("'>")
		at += m[1]
	}
	return b.String() + "</span></pre>"
}

// setStyle applies the numbers of one sequence.
func setStyle(style map[string]string, numbers []string) {
	for i := 0; i < len(numbers); i++ {
		switch numbers[i] {
		case "", "0":
			clear(style)
		case "1":
			style["font-weight"] = "bold"
		case "2":
			style["opacity"] = ".65"
		case "22":
			delete(style, "font-weight")
			delete(style, "opacity")
		case "27":
			delete(style, "background")
			delete(style, "color")
		case "39":
			if delete(style, "color"); style["background"] != "" {
				style["color"] = dark
			}
		case "7":
			style["background"], style["color"] = light, dark
		case "38":
			if i+4 < len(numbers) && numbers[i+1] == "2" {
				style["color"] = fmt.Sprintf("rgb(%s)", strings.Join(numbers[i+2:i+5], ","))
				i += 4
			} else if i+2 < len(numbers) && numbers[i+1] == "5" {
				style["color"] = cube(numbers[i+2])
				i += 2
			}
		}
	}
}

// cube is a colour of the 6x6x6 cube of terminals with 256 colours.
func cube(number string) string {
	n, _ := strconv.Atoi(number)
	n = max(0, n-16)
	level := func(i int) int {
		if i == 0 {
			return 0
		}
		return 55 + 40*i
	}
	return fmt.Sprintf("rgb(%d,%d,%d)", level(n/36%6), level(n/6%6), level(n%6))
}
