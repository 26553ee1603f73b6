// Package dataplane simulates Numaflow's data plane for a user-defined vertex, over the vertex's
// socket, and fails the test if the vertex breaks the protocol. [Batch] describes its cycle.
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
	err   error // of waiting for the process

	mu        sync.Mutex
	arrivals  []time.Time     // of messages that left a source, or were handled
	values    []string        // of messages that left a source
	open      map[string]bool // offsets that are neither acknowledged nor nacked
	refused   int             // data nacked by a sink or map
	failures  int             // failures answered by a sink
	lost      int             // messages without redelivery: nacks ignored, or dropped by onFailure
	delivered int             // messages delivered by the built-in source before a sink or map
	faults    []string        // of the protocol
	mayEnd    bool            // it may end during a batch
}

// A Kind is the kind of a vertex.
type Kind struct{ socket, info string }

// The kinds.
var (
	Source    = Kind{"source.sock", "sourcer-server-info"}
	Map       = Kind{"map.sock", "mapper-server-info"}
	BatchMap  = Kind{"batchmap.sock", "mapper-server-info"}
	MapStream = Kind{"mapstream.sock", "mapper-server-info"}
	Sink      = Kind{"sink.sock", "sinker-server-info"}
)

// Start runs a vertex of a kind, with -sockets DIRECTORY before its arguments, and connects to
// it. It kills the vertex at the end of the test.
func Start(t testing.TB, kind Kind, env []string, binary string, args ...string) *Vertex {
	t.Helper()
	directory, err := os.MkdirTemp("", "vertex") // the path of a socket must be short
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
		_ = v.cmd.Process.Kill() // it has usually ended by now
		<-v.ended
		require.NoError(t, os.RemoveAll(directory))
		v.mu.Lock()
		defer v.mu.Unlock()
		require.Empty(t, v.faults, "faults of the protocol")
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
		// The socket appears after the other one, and listens a moment later.
		conn, err := net.Dial("unix", filepath.Join(directory, kind.socket))
		return err == nil && conn.Close() == nil
	}, 20*time.Second, 10*time.Millisecond)
	v.conn, err = grpc.NewClient("unix:"+filepath.Join(directory, kind.socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = v.conn.Close() }) // Stop closes it, too
	return v
}

// MayEnd allows the vertex to end during a batch.
func (v *Vertex) MayEnd() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mayEnd = true
}

// Kill ends the process as a power failure would.
func (v *Vertex) Kill() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Kill())
	<-v.ended
}

// Terminate asks the process to end, as Kubernetes does when it restarts only this container, and
// does not wait.
func (v *Vertex) Terminate() {
	v.t.Helper()
	v.MayEnd()
	require.NoError(v.t, v.cmd.Process.Signal(syscall.SIGTERM))
}

// Stop ends the process as Kubernetes does after its data plane has ended, and returns the time
// that it took.
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

// Arrivals returns when messages left a source, or were handled by a map or sink.
func (v *Vertex) Arrivals() []time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.arrivals)
}

// Values returns the values that left a source, in order.
func (v *Vertex) Values() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.values)
}

// Refused returns the number of data that a sink or map has nacked.
func (v *Vertex) Refused() int { return v.counted(&v.refused) }

// Failures returns the number of failures that a sink has answered.
func (v *Vertex) Failures() int { return v.counted(&v.failures) }

// Lost returns the number of messages without redelivery: the source ignores nacks, or
// retryStrategy dropped them.
func (v *Vertex) Lost() int { return v.counted(&v.lost) }

// Delivered returns the number of messages that the built-in source before a sink or map has
// delivered, with redeliveries.
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

// failed records why a stream has ended, unless it was closed or the vertex may end.
func (v *Vertex) failed(ctx context.Context, what string, err error) {
	v.mu.Lock()
	mayEnd := v.mayEnd
	v.mu.Unlock()
	if ctx.Err() == nil && !mayEnd {
		v.fault("%s: %v", what, err)
	}
}
