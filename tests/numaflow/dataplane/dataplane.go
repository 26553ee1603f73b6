// Package dataplane drives a user-defined vertex over its socket as Numaflow's data plane does. It
// fails the test if the vertex violates the protocol. See [Batch] for its cycle.
package dataplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/numaproj/numaflow-go/pkg/info"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A Vertex is a process with the user's code and a connection to it.
type Vertex struct {
	t     testing.TB
	kind  Kind
	cmd   *exec.Cmd
	conn  *grpc.ClientConn
	ended chan struct{}
	err   error // of the process

	mu        sync.Mutex
	arrivals  []time.Time     // of messages that a source delivered, or a map or sink handled
	values    []string        // of messages that a source delivered
	open      map[string]bool // offsets neither acknowledged nor nacked
	refused   int             // data that a map or sink has nacked
	failures  int             // failures that a sink has answered
	lost      int             // messages not redelivered, by a source without nacks or by onFailure
	delivered int             // messages delivered by the built-in source of a map or sink
	faults    []string        // violations of the protocol
	mayEnd    bool            // it may end in the middle of a batch
	lateRead  time.Duration   // the longest that a Read took beyond its time-out
}

// A Kind is the kind of a vertex: its socket and its server-info file.
type Kind struct{ socket, info string }

// The kinds.
var (
	Source    = Kind{"source.sock", "sourcer-server-info"}
	Map       = Kind{"map.sock", "mapper-server-info"}
	BatchMap  = Kind{"batchmap.sock", "mapper-server-info"}
	MapStream = Kind{"mapstream.sock", "mapper-server-info"}
	Sink      = Kind{"sink.sock", "sinker-server-info"}
)

// Start runs a vertex of a kind, with -sockets DIRECTORY before its arguments, and connects to it.
// At the end of the test, it is killed if it still runs.
func Start(t testing.TB, kind Kind, env []string, binary string, args ...string) *Vertex {
	t.Helper()
	directory, err := os.MkdirTemp("", "vertex") // a socket's name must be short
	require.NoError(t, err)
	v := &Vertex{
		t: t, kind: kind,
		cmd:   exec.Command(binary, append([]string{"-sockets", directory}, args...)...),
		ended: make(chan struct{}), open: map[string]bool{},
	}
	v.cmd.Env = append(append(os.Environ(), "GOMAXPROCS=1"), env...)
	v.cmd.Stderr = os.Stderr
	require.NoError(t, v.cmd.Start())
	go func() {
		v.err = v.cmd.Wait()
		close(v.ended)
	}()
	t.Cleanup(func() {
		_ = v.cmd.Process.Kill() // fails if the process has ended
		<-v.ended
		require.NoError(t, os.RemoveAll(directory))
		v.mu.Lock()
		defer v.mu.Unlock()
		require.Empty(t, v.faults, "violations of the protocol")
	})
	throttletest.Until(t, "the vertex listens", func() bool {
		select {
		case <-v.ended:
			require.NoError(t, v.err, "the vertex has ended")
		default:
		}
		server, err := info.Read(info.WithServerInfoFilePath(filepath.Join(directory, kind.info)))
		if err != nil || server.Protocol != info.UDS {
			return false
		}
		// The socket appears after the info file, and accepts connections a moment later.
		conn, err := net.Dial("unix", filepath.Join(directory, kind.socket))
		return err == nil && conn.Close() == nil
	})
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	v.conn, err = grpc.NewClient("unix:"+filepath.Join(directory, kind.socket), plain)
	require.NoError(t, err)
	t.Cleanup(func() { _ = v.conn.Close() })
	return v
}

// MayEnd allows the vertex to end in the middle of a batch.
func (v *Vertex) MayEnd() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mayEnd = true
}

// Kill ends the process with SIGKILL.
func (v *Vertex) Kill() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Kill())
	<-v.ended
}

// Terminate ends the process with SIGTERM, as Kubernetes does to restart only this container, and
// does not wait.
func (v *Vertex) Terminate() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Signal(syscall.SIGTERM))
}

// Stop ends the process with SIGTERM after its data plane has ended, as Kubernetes does, and
// returns how long that took.
func (v *Vertex) Stop() time.Duration {
	v.t.Helper()
	start := time.Now()
	require.NoError(v.t, v.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-v.ended:
	case <-time.After(late):
		require.Fail(v.t, "the vertex does not end")
	}
	require.NoError(v.t, v.err)
	return time.Since(start)
}

// LateRead returns the longest that a Read took beyond its time-out.
func (v *Vertex) LateRead() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lateRead
}

func (v *Vertex) arrived(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for range n {
		v.arrivals = append(v.arrivals, now)
	}
}

// Arrivals returns the times at which a source delivered messages, or a map or sink handled them.
func (v *Vertex) Arrivals() []time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.arrivals)
}

// Values returns the messages that a source delivered, in order.
func (v *Vertex) Values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.values)
}

// Forget drops the arrivals and values so far.
func (v *Vertex) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.arrivals, v.values = nil, nil
}

// CPU returns the user and system time that the process has used, in ticks of 10 ms.
func (v *Vertex) CPU() time.Duration {
	v.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.cmd.Process.Pid))
	require.NoError(v.t, err)
	_, rest, _ := strings.Cut(string(stat), ") ") // of the process's name
	fields := strings.Fields(rest)
	user, err := strconv.ParseInt(fields[11], 10, 64)
	require.NoError(v.t, err)
	system, err := strconv.ParseInt(fields[12], 10, 64)
	require.NoError(v.t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Refused returns the number of data that a map or sink has nacked.
func (v *Vertex) Refused() int { return v.counted(&v.refused) }

// Failures returns the number of failures that a sink has answered.
func (v *Vertex) Failures() int { return v.counted(&v.failures) }

// Lost returns the number of messages that will not be redelivered: they were nacked and the source
// ignores nacks, or the retryStrategy dropped them.
func (v *Vertex) Lost() int { return v.counted(&v.lost) }

// Delivered returns the number of messages that the built-in source of a map or sink has delivered,
// including redeliveries.
func (v *Vertex) Delivered() int { return v.counted(&v.delivered) }

func (v *Vertex) counted(n *int) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return *n
}

func (v *Vertex) count(n *int, by int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	*n += by
}

func (v *Vertex) fault(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.faults) < 10 {
		v.faults = append(v.faults, fmt.Sprintf(format, args...))
	}
}

// failed records why a stream has ended, unless ctx was cancelled or the vertex may end.
func (v *Vertex) failed(ctx context.Context, what string, err error) {
	v.mu.Lock()
	mayEnd := v.mayEnd
	v.mu.Unlock()
	if ctx.Err() == nil && !mayEnd {
		v.fault("%s: %v", what, err)
	}
}
