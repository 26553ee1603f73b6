// Package dataplane does to a user-defined vertex what Numaflow's data plane does, over the vertex's socket, and fails the test
// when the vertex breaks the protocol. See Batch for what it does in turn.
package dataplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/numaproj/numaflow-go/pkg/info"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A Vertex is a process with the user's code, and a connection to it.
type Vertex struct {
	t     testing.TB
	kind  Kind
	cmd   *exec.Cmd
	conn  *grpc.ClientConn
	ended chan struct{}
	err   error // of the process

	mu        sync.Mutex
	arrivals  []time.Time     // of messages that came out, or were handled
	values    []string        // of those that came out of a source
	open      map[string]bool // offsets of those that were neither acknowledged nor refused
	refused   int             // data that a sink or map has nacked
	failures  int             // answers of a sink that are failures
	lost      int             // messages that will not come again: the source ignores nacks, or onFailure drops them
	delivered int             // messages that the built-in source in front of a sink or map was asked for
	faults    []string        // of protocol
	mayEnd    bool            // it may end in the middle of a batch
}

// A Kind is what a vertex does.
type Kind struct{ socket, info string }

// The kinds.
var (
	Source    = Kind{"source.sock", "sourcer-server-info"}
	Map       = Kind{"map.sock", "mapper-server-info"}
	BatchMap  = Kind{"batchmap.sock", "mapper-server-info"}
	MapStream = Kind{"mapstream.sock", "mapper-server-info"}
	Sink      = Kind{"sink.sock", "sinker-server-info"}
)

// Start runs a vertex of a kind, with -sockets DIRECTORY before its arguments, and connects to it. What still runs at the end
// of the test is killed.
func Start(t testing.TB, kind Kind, env []string, binary string, args ...string) *Vertex {
	t.Helper()
	directory, err := os.MkdirTemp("", "vertex") // a socket's name must be short
	require.NoError(t, err)
	v := &Vertex{
		t: t, kind: kind, cmd: exec.Command(binary, append([]string{"-sockets", directory}, args...)...),
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
		_ = v.cmd.Process.Kill() // ended already if all went well
		<-v.ended
		require.NoError(t, os.RemoveAll(directory))
		v.mu.Lock()
		defer v.mu.Unlock()
		require.Empty(t, v.faults, "faults of protocol")
	})
	require.Eventually(t, func() bool {
		select {
		case <-v.ended:
			require.NoError(t, v.err, "the vertex has ended")
		default:
		}
		server, err := info.Read(info.WithServerInfoFilePath(filepath.Join(directory, kind.info)))
		if err != nil || server.Protocol != info.UDS {
			return false
		}
		conn, err := net.Dial("unix", filepath.Join(directory, kind.socket)) // it comes after the other, and listens a moment later
		return err == nil && conn.Close() == nil
	}, 20*time.Second, 10*time.Millisecond)
	v.conn, err = grpc.NewClient("unix:"+filepath.Join(directory, kind.socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = v.conn.Close() }) // closed already, if it was stopped
	return v
}

// MayEnd says that the vertex may end while a batch is under way.
func (v *Vertex) MayEnd() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mayEnd = true
}

// Kill ends the process as a power cut would.
func (v *Vertex) Kill() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Kill())
	<-v.ended
}

// Terminate has the process end as Kubernetes does when it restarts this container alone, and does not wait for that.
func (v *Vertex) Terminate() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Signal(syscall.SIGTERM))
}

// Stop has the process end as Kubernetes does, its data plane having ended before, and tells how long it took.
func (v *Vertex) Stop() time.Duration {
	v.t.Helper()
	begin := time.Now()
	require.NoError(v.t, v.cmd.Process.Signal(syscall.SIGTERM))
	<-v.ended
	require.NoError(v.t, v.err)
	return time.Since(begin)
}

func (v *Vertex) arrived(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for range n {
		v.arrivals = append(v.arrivals, now)
	}
}

// Arrivals are when messages came out of a source, or were handled by a map or sink.
func (v *Vertex) Arrivals() []time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.arrivals)
}

// Values are what came out of a source, in the order in which it came.
func (v *Vertex) Values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.values)
}

// Refused is how many data a sink or map has nacked.
func (v *Vertex) Refused() int { return v.counted(&v.refused) }

// Failures is how many answers of a sink were failures.
func (v *Vertex) Failures() int { return v.counted(&v.failures) }

// Lost is how many messages will not come again: they were nacked and the source ignores that, or retryStrategy dropped them.
func (v *Vertex) Lost() int { return v.counted(&v.lost) }

// Delivered is how many messages the built-in source in front of a sink or map has delivered, again or for the first time.
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

// failed notes why a stream has ended, unless somebody ended it, or the vertex may end.
func (v *Vertex) failed(ctx context.Context, what string, err error) {
	v.mu.Lock()
	mayEnd := v.mayEnd
	v.mu.Unlock()
	if ctx.Err() == nil && !mayEnd {
		v.fault("%s: %v", what, err)
	}
}
