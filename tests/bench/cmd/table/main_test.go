package main

import (
	"strings"
	"testing"
)

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.12345: "0.123", 999.4: "999", 999.6: "1000", 118522905: "118522905", -1234: "-1234",
	} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	r := results{samples: map[row][]float64{}}
	for _, ns := range []string{"13.5", "12.25", "40"} {
		err := r.read([]byte("pkg: github.com/dispatchthrottle/throttle/tests/bench\n" +
			"BenchmarkAdmit/throttle-2   \t1000\t " + ns + " ns/op\t 16 B/op\t 0 allocs/permit\n" +
			"BenchmarkAdmit/x/time/rate-2\t 100\t 135 ns/op\n" +
			"BenchmarkOneWaiter/1000/throttle-2\t 1\t 98.5 %-of-limit\n" +
			"ok  \tgithub.com/dispatchthrottle/throttle/tests/bench\t0.1s\n"))
		if err != nil {
			t.Fatal(err)
		}
	}
	const want = `| tests/bench | Admit | throttle | 13.5 | ns/op | 206 % |  | ≤ 12 **missed**  |
| tests/bench | Admit | throttle | 0 | allocs/permit | 0 % |  | ≤ 0  |
| tests/bench | Admit | x/time/rate | 135 | ns/op | 0 % | 10x |  |
| tests/bench | OneWaiter/1000 | throttle | 98.5 | %-of-limit | 0 % |  |  |
`
	if got := string(r.table(3)); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant it to end in\n%s", got, want)
	}
}
