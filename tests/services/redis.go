package services

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Redis returns the URL of a Redis, redis://host:port: THROTTLE_TEST_REDIS or, without it, that of
// a server that ends with the test.
func Redis(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(redisEnv); url != "" {
		return url
	}
	return RedisServer(t).URL
}

// Patient returns the URL of a permit store with a time-out of 10 s, for a test on a machine that
// may be busy.
func Patient(url string) string {
	option := "?timeout=10s"
	if strings.Contains(url, "?") {
		option = "&timeout=10s"
	}
	return url + option
}

// A RedisProcess is a redis-server of one test, without persistence. Its methods fail the test if
// they fail, and must be called from the test's goroutine.
type RedisProcess struct {
	Addr string // host:port
	URL  string // redis://host:port

	t     testing.TB
	args  []string
	clock *Clock   // nil: the machine's
	p     *process // nil while stopped
}

// RedisServer starts a redis-server that ends with the test; args are added to its command line.
// It ignores the environment.
func RedisServer(t testing.TB, args ...string) *RedisProcess {
	t.Helper()
	return redisServer(t, nil, args...)
}

// RedisServerWithClock is RedisServer with a clock of its own.
func RedisServerWithClock(t testing.TB, clock *Clock, args ...string) *RedisProcess {
	t.Helper()
	return redisServer(t, clock, args...)
}

func redisServer(t testing.TB, clock *Clock, args ...string) *RedisProcess {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal("services: no redis-server: run `make services`, or set THROTTLE_TEST_REDIS")
	}
	port := freePort(t)
	common := []string{
		"--bind", host, "--protected-mode", "no", "--port", strconv.Itoa(port), "--save", "",
		"--appendonly", "no",
	}
	return startRedis(t, port, clock, append(common, args...)...)
}

func startRedis(t testing.TB, port int, clock *Clock, args ...string) *RedisProcess {
	t.Helper()
	r := &RedisProcess{
		Addr: hostPort(port), URL: "redis://" + hostPort(port), t: t, args: args, clock: clock,
	}
	r.Start()
	t.Cleanup(r.Kill)
	return r
}

// Start starts a stopped server again, empty, on the same port, and returns when it answers.
func (r *RedisProcess) Start() {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "redis-")
	if err != nil {
		r.t.Fatal(err)
	}
	name, args := "redis-server", r.args
	if r.clock != nil {
		name, args = "env", slices.Concat(r.clock.env(), []string{name}, args)
	}
	if r.p, err = startProcess(dir, name, args...); err != nil {
		r.t.Fatal(err)
	}
	if err := waitFor(r.ping); err != nil {
		r.t.Fatalf("services: redis-server does not answer: %v\n%s", err, r.p.log())
	}
}

// ping reports whether the server answers; one that asks for a password does.
func (r *RedisProcess) ping() error {
	conn, err := net.DialTimeout("tcp", r.Addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // fails only on a closed connection
	if _, err := fmt.Fprint(conn, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
		err = fmt.Errorf("PING: %q", line)
	}
	return err
}

// Stop ends the server with SIGTERM, and waits for its end. Its data is lost.
func (r *RedisProcess) Stop() { r.t.Helper(); r.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL. A second call does nothing.
func (r *RedisProcess) Kill() { r.t.Helper(); r.end(syscall.SIGKILL) }

func (r *RedisProcess) end(sig syscall.Signal) {
	r.t.Helper()
	if r.p == nil {
		return
	}
	r.Thaw() // a frozen server does not handle SIGTERM
	err := r.p.end(sig)
	r.p = nil
	if err != nil {
		r.t.Errorf("services: end redis-server: %v", err)
	}
}

// Freeze stops the server with SIGSTOP: connections stay open, and nothing is answered.
func (r *RedisProcess) Freeze() { r.t.Helper(); r.signal(syscall.SIGSTOP) }

// Thaw ends Freeze; the server then answers what it was sent meanwhile.
func (r *RedisProcess) Thaw() { r.t.Helper(); r.signal(syscall.SIGCONT) }

func (r *RedisProcess) signal(sig syscall.Signal) {
	r.t.Helper()
	if r.p == nil {
		r.t.Fatal("services: redis-server is stopped")
	}
	if err := r.p.signal(sig); err != nil {
		r.t.Errorf("services: signal redis-server: %v", err)
	}
}

// PID returns the process id of the running server, 0 if it is stopped.
func (r *RedisProcess) PID() int {
	if r.p == nil {
		return 0
	}
	return r.p.pid
}
