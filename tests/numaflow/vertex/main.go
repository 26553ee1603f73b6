// Vertex is a throttled user-defined vertex as a user would deploy it:
//
//	vertex -sockets DIRECTORY source|map|batchmap|mapstream|sink
//
// It reads Numaflow's environment and that of throttle.FromEnv. With VERTEX_BARE=1 it has no
// Limiter; with VERTEX_NACKS=1 it answers with nacks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	numaflow "github.com/numaproj/numaflow-go/pkg"
	"github.com/numaproj/numaflow-go/pkg/batchmapper"
	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/mapstreamer"
	"github.com/numaproj/numaflow-go/pkg/sinker"
	"github.com/numaproj/numaflow-go/pkg/sourcer"

	"github.com/dispatchthrottle/throttle"
	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
)

func main() {
	sockets := flag.String("sockets", "/var/run/numaflow", "directory of the data plane's sockets")
	flag.Parse()
	if err := run(flag.Arg(0), *sockets); err != nil {
		fmt.Fprintln(os.Stderr, "vertex:", err)
		os.Exit(1)
	}
}

func run(kind, sockets string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var lim *dispatch.Limiter
	if os.Getenv("VERTEX_BARE") == "" {
		if lim, err = throttle.FromEnv(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lim.Close()) }()
	}
	opts := []numaflowthrottle.Option{numaflowthrottle.WithProcess(ctx)}
	if os.Getenv("VERTEX_NACKS") != "" {
		opts = append(opts, numaflowthrottle.WithNacks())
	}
	var server numaflow.Server
	switch kind {
	case "source":
		s, err := numaflowthrottle.Source(&numbers{}, lim)
		if err != nil {
			return err
		}
		server = sourcer.NewServer(s,
			sourcer.WithSockAddr(sockets+"/source.sock"),
			sourcer.WithServerInfoFilePath(sockets+"/sourcer-server-info"))
	case "map":
		m, err := numaflowthrottle.Map(mapper.MapperFunc(dropByKey), lim, opts...)
		if err != nil {
			return err
		}
		server = mapper.NewServer(m,
			mapper.WithSockAddr(sockets+"/map.sock"),
			mapper.WithServerInfoFilePath(sockets+"/mapper-server-info"))
	case "batchmap":
		m, err := numaflowthrottle.BatchMap(batchmapper.BatchMapperFunc(dropByKeyInBatch), lim,
			opts...)
		if err != nil {
			return err
		}
		server = batchmapper.NewServer(m,
			batchmapper.WithSockAddr(sockets+"/batchmap.sock"),
			batchmapper.WithServerInfoFilePath(sockets+"/mapper-server-info"))
	case "mapstream":
		m, err := numaflowthrottle.MapStream(mapstreamer.MapStreamerFunc(dropByKeyInStream), lim,
			opts...)
		if err != nil {
			return err
		}
		server = mapstreamer.NewServer(m,
			mapstreamer.WithSockAddr(sockets+"/mapstream.sock"),
			mapstreamer.WithServerInfoFilePath(sockets+"/mapper-server-info"))
	case "sink":
		s, err := numaflowthrottle.Sink(sinker.SinkerFunc(discard), lim, opts...)
		if err != nil {
			return err
		}
		server = sinker.NewServer(s,
			sinker.WithSockAddr(sockets+"/sink.sock"),
			sinker.WithServerInfoFilePath(sockets+"/sinker-server-info"))
	default:
		return fmt.Errorf("%q: is invalid: want source, map, batchmap, mapstream or sink", kind)
	}
	return server.Start(ctx)
}

// numbers is an endless source. It delivers nacked messages again.
type numbers struct {
	mu      sync.Mutex
	next    int64
	refused []int64
}

func (n *numbers) Read(
	ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message,
) {
	for range request.Count() {
		i := strconv.AppendInt(nil, n.take(), 10)
		select {
		case out <- sourcer.NewMessage(i, sourcer.NewOffsetWithDefaultPartitionId(i), time.Now()):
		case <-ctx.Done():
			return
		}
	}
}

func (n *numbers) take() (i int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.refused) > 0 {
		i, n.refused = n.refused[0], n.refused[1:]
		return i
	}
	n.next++
	return n.next
}

func (n *numbers) Ack(context.Context, sourcer.AckRequest) {}

func (n *numbers) Nack(_ context.Context, request sourcer.NackRequest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range request.Offsets() {
		i, err := strconv.ParseInt(string(o.Offset.Value()), 10, 64)
		if err != nil {
			panic(err) // numbers never delivered it
		}
		n.refused = append(n.refused, i)
	}
}

// backlog is the number that Pending returns.
const backlog = 1_000_000

func (n *numbers) Pending(context.Context) int64            { return backlog }
func (n *numbers) ActivePartitions(context.Context) []int32 { return sourcer.DefaultPartitions() }
func (n *numbers) TotalPartitions(context.Context) *int32   { return nil }

// dropByKey drops messages whose first key is "drop".
func dropByKey(_ context.Context, keys []string, d mapper.Datum) mapper.Messages {
	if len(keys) > 0 && keys[0] == "drop" {
		return mapper.Messages{mapper.MessageToDrop()}
	}
	return mapper.Messages{mapper.NewMessage(d.Value())}
}

func dropByKeyInBatch(_ context.Context, in <-chan batchmapper.Datum) batchmapper.BatchResponses {
	responses := batchmapper.BatchResponsesBuilder()
	for d := range in {
		r := batchmapper.NewBatchResponse(d.Id())
		if len(d.Keys()) > 0 && d.Keys()[0] == "drop" {
			r = r.Append(batchmapper.MessageToDrop())
		} else {
			r = r.Append(batchmapper.NewMessage(d.Value()))
		}
		responses = responses.Append(r)
	}
	return responses
}

func dropByKeyInStream(
	_ context.Context, keys []string, d mapstreamer.Datum, out chan<- mapstreamer.Message,
) {
	defer close(out)
	if len(keys) > 0 && keys[0] == "drop" {
		out <- mapstreamer.MessageToDrop()
		return
	}
	out <- mapstreamer.NewMessage(d.Value())
}

// discard is a sink that takes 20 ms for a call.
func discard(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
	for d := range in {
		responses = append(responses, sinker.ResponseOK(d.ID()))
	}
	time.Sleep(20 * time.Millisecond)
	return responses
}
