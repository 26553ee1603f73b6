package kafka_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle"
	kafkathrottle "github.com/dispatchthrottle/throttle/adapters/kafka"
)

// readerEnv makes this test binary a reader process: brokers, topic and group, with blanks between.
const readerEnv = "THROTTLE_TEST_KAFKA_READER"

// TestMain is the reader process, too.
func TestMain(m *testing.M) {
	if args := os.Getenv(readerEnv); args != "" {
		if err := read(strings.Fields(args)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// read prints a line for each message that is handed over, and one when it and those before are committed, until its
// input ends. A group that cannot form yet is an error that the next call gets over. The second says "late" if a new generation of the group has begun since the commit before: then they
// may have been committed when the new owners of their partitions had asked already where to begin.
func read(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it, too
		cancel()
	}()
	lim, err := throttle.FromEnv(ctx)
	if err != nil {
		return err
	}
	r, err := kafkathrottle.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(args[0], ","), Topic: args[1], GroupID: args[2], MaxWait: 500 * time.Millisecond, ReadLagInterval: -1,
		HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: sessionTimeout, RebalanceTimeout: sessionTimeout,
	}, lim)
	if err != nil {
		return errors.Join(err, lim.Close())
	}
	var batch []kafka.Message
	for {
		m, err := r.FetchMessage(ctx)
		if ctx.Err() != nil {
			break
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		fmt.Println("read", time.Now().UnixNano(), m.Partition, m.Offset)
		if batch = append(batch, m); len(batch) < commitEvery {
			continue
		}
		if err := r.CommitMessages(ctx, batch...); err != nil {
			break
		}
		if r.Stats().Rebalances == 0 {
			fmt.Println("committed", time.Now().UnixNano(), 0, 0)
		} else {
			fmt.Println("late", time.Now().UnixNano(), 0, 0)
		}
		batch = batch[:0]
	}
	return errors.Join(r.Close(), lim.Close())
}

// commitEvery is how many messages are read between two commits.
const commitEvery = 8

// sessionTimeout is how long the partitions of a killed reader stand still; Kafka allows no less by default.
const sessionTimeout = 6 * time.Second

// A message is one that a reader process was handed.
type message struct {
	partition int
	offset    int64
	read      time.Time
	committed bool // in the generation in which it was read
	reader    int
}

// A process is one reader of a group.
type process struct {
	id    int
	group string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu       sync.Mutex
	messages []message
	settled  int // those before have had their commit
}

// start runs a reader process, which is killed at the end of the test if it is still there.
func start(t *testing.T, id int, env []string, brokers, topic, group string) *process {
	t.Helper()
	p := &process{id: id, group: group, cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), env...), "GOMAXPROCS=1", readerEnv+"="+strings.Join([]string{brokers, topic, group}, " "))
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.line(lines.Text())
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // ended already if all went well
		<-p.ended
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) line(text string) {
	var what string
	var at int64
	var m message
	if n, _ := fmt.Sscan(text, &what, &at, &m.partition, &m.offset); n != 4 {
		return // cut off by a kill
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch what {
	case "read":
		m.reader, m.read = p.id, time.Unix(0, at)
		p.messages = append(p.messages, m)
	case "committed":
		for i := p.settled; i < len(p.messages); i++ {
			p.messages[i].committed = true
		}
		p.settled = len(p.messages)
	case "late":
		p.settled = len(p.messages)
	}
}

// kill ends the process as a power cut would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	<-p.ended
}

// stop ends the process as a deployment would, and waits for it.
func (p *process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.stdin.Close())
	<-p.ended
	require.NoError(t, p.cmd.Wait())
}
