// Table runs every benchmark of the repository in several rounds, all of them in each round, and
// writes the medians to docs/benchmarks.md, those of other limiters beside our own.
//
// A benchmark is in the table by its name, Benchmark<Work>/<limiter>. Each figure that it reports
// (b.ReportMetric) becomes a row. Our own limiter is called throttle; the name of its work may have
// slashes. The goals are in goals.go.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/tests/tables"
)

func main() {
	rounds := flag.Int("rounds", 5, "number of rounds; each round runs every benchmark")
	bench := flag.String("bench", ".", "benchmarks to run, a regular expression as for go test")
	skip := flag.String("skip", "^Benchmark(Pulsar|Franz|Numaflow|Busy|ReportOutcome|Decide)",
		"benchmarks to leave out; by default those of the other targets of make")
	target := flag.String("target", "bench",
		"target of make, which names the place of the table in docs/benchmarks.md")
	benchtime := flag.Duration("benchtime", 300*time.Millisecond, "shortest run of each benchmark")
	root := flag.String("root", "../..", "path of the repository")
	flag.Parse()
	args := []string{"-bench", *bench, "-skip", *skip, "-benchtime", benchtime.String()}
	if err := run(*root, *target, *rounds, args); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(root, target string, rounds int, which []string) error {
	dirs, err := benchmarked(root)
	if err != nil {
		return err
	}
	r := results{samples: map[row][]float64{}}
	for range rounds {
		for _, module := range []string{"tests/bench", "."} {
			packages := dirs[module]
			if len(packages) == 0 {
				continue
			}
			args := slices.Concat([]string{"test", "-run", "^$", "-timeout", "20m"}, which,
				packages)
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Stderr = filepath.Join(root, module), os.Stderr
			var out bytes.Buffer
			cmd.Stdout = io.MultiWriter(&out, os.Stdout) // shows the progress
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
			}
			if err := r.read(out.Bytes()); err != nil {
				return err
			}
		}
	}
	return tables.Write(filepath.Join(root, "docs", "benchmarks.md"), target, r.table(rounds))
}

var benchmarkFunc = regexp.MustCompile(`(?m)^func Benchmark`)

// benchmarked returns the packages that have benchmarks, by the directories of their modules.
func benchmarked(root string) (map[string][]string, error) {
	dirs := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !benchmarkFunc.Match(text) {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		module := "."
		if rest, ok := strings.CutPrefix(dir, "tests/bench"); ok {
			module, dir = "tests/bench", strings.TrimPrefix(rest, "/")
		}
		if dir = "./" + dir; !slices.Contains(dirs[module], dir) {
			dirs[module] = append(dirs[module], dir)
		}
		return nil
	})
	return dirs, err
}

// A row is one figure of one benchmark.
type row struct{ pkg, work, limiter, unit string }

// Results are the figures of all rounds, in the order in which they first appeared.
type results struct {
	rows    []row
	samples map[row][]float64
}

const ours = "throttle"

var cpus = regexp.MustCompile(`-\d+$`)

// read adds the figures in the output of go test.
func (r *results) read(out []byte) error {
	pkg := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 2 && fields[0] == "pkg:" {
			pkg = strings.TrimPrefix(fields[1], "github.com/dispatchthrottle/throttle/")
		}
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := cpus.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		work, limiter, _ := strings.Cut(name, "/")
		if ownWork, ok := strings.CutSuffix(name, "/"+ours); ok {
			work, limiter = ownWork, ours
		}
		for ; len(fields) >= 4; fields = slices.Delete(fields, 2, 4) {
			value, err := strconv.ParseFloat(fields[2], 64)
			if err != nil {
				return fmt.Errorf("read %q: %w", lines.Text(), err)
			}
			key := row{pkg, work, cmp.Or(limiter, ours), fields[3]}
			if _, ok := r.samples[key]; !ok {
				r.rows = append(r.rows, key)
			}
			r.samples[key] = append(r.samples[key], value)
		}
	}
	return nil
}

// table returns the table of medians, in Markdown.
func (r *results) table(rounds int) []byte {
	var b bytes.Buffer
	figures := fmt.Sprintf("medians of %d rounds", rounds)
	if rounds == 1 {
		figures = "one round"
	}
	fmt.Fprintf(&b, "%s, %s/%s, %d cores; %s. Spread: (highest - lowest) / median.\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), figures)
	fmt.Fprintln(&b, "| package | work | limiter | median | unit | spread | beside ours | goal |")
	fmt.Fprintln(&b, "| --- | --- | --- | ---: | --- | ---: | ---: | --- |")
	for _, k := range r.rows {
		m, spread := median(r.samples[k])
		if k.unit == "B/op" || m == 0 && k.limiter != ours {
			continue // allocs/op counts allocations; other limiters' zeros need no row
		}
		beside, goal := "", ""
		if k.limiter == ours {
			goal = goals.judge(k, m)
		} else if own := r.samples[row{k.pkg, k.work, ours, k.unit}]; own != nil {
			if o, _ := median(own); o > 0 {
				beside = fmt.Sprintf("%.3gx", m/o)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.0f %% | %s | %s |\n",
			k.pkg, k.work, k.limiter, figure(m), k.unit, 100*spread, beside, goal)
	}
	return b.Bytes()
}

// median returns the median of samples, and their range as a fraction of it.
func median(samples []float64) (m, spread float64) {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	m = (s[(n-1)/2] + s[n/2]) / 2
	if m != 0 {
		spread = (s[n-1] - s[0]) / m
	}
	return m, spread
}

// figure formats v with three significant digits, but for a whole number of more.
func figure(v float64) string {
	if math.Abs(v) >= 999.5 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
