// Vertex is a user-defined vertex as somebody would deploy it, with its limits: vertex -sockets DIRECTORY source|map|sink. It goes by
// Numaflow's environment, and by that of throttle.FromEnv. With VERTEX_BARE=1 it has no Limiter.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	numaflow "github.com/numaproj/numaflow-go/pkg"
	"github.com/numaproj/numaflow-go/pkg/mapper"
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
	ctx := context.Background()
	var lim *dispatch.Limiter
	if os.Getenv("VERTEX_BARE") == "" {
		if lim, err = throttle.FromEnv(ctx, throttle.WithLogger(slog.Default())); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lim.Close()) }()
	}
	var server numaflow.Server
	switch kind {
	case "source":
		s, err := numaflowthrottle.Source(&numbers{}, lim)
		if err != nil {
			return err
		}
		server = sourcer.NewServer(s, sourcer.WithSockAddr(sockets+"/source.sock"), sourcer.WithServerInfoFilePath(sockets+"/sourcer-server-info"))
	case "map":
		m, err := numaflowthrottle.Map(mapper.MapperFunc(dropOdd), lim)
		if err != nil {
			return err
		}
		server = mapper.NewServer(m, mapper.WithSockAddr(sockets+"/map.sock"), mapper.WithServerInfoFilePath(sockets+"/mapper-server-info"))
	case "sink":
		s, err := numaflowthrottle.Sink(sinker.SinkerFunc(discard), lim)
		if err != nil {
			return err
		}
		server = sinker.NewServer(s, sinker.WithSockAddr(sockets+"/sink.sock"), sinker.WithServerInfoFilePath(sockets+"/sinker-server-info"))
	default:
		return fmt.Errorf("%q is no kind of vertex", kind)
	}
	return server.Start(ctx)
}

// numbers is a source without an end.
type numbers struct{ next atomic.Int64 }

func (n *numbers) Read(ctx context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	for range request.Count() {
		i := strconv.AppendInt(nil, n.next.Add(1), 10)
		select {
		case out <- sourcer.NewMessage(i, sourcer.NewOffsetWithDefaultPartitionId(i), time.Now()):
		case <-ctx.Done():
			return
		}
	}
}

func (n *numbers) Ack(context.Context, sourcer.AckRequest) {}

func (n *numbers) Nack(_ context.Context, request sourcer.NackRequest) {
	fmt.Fprintln(os.Stderr, "nacked", len(request.Offsets()))
}

func (n *numbers) Pending(context.Context) int64            { return -1 }
func (n *numbers) ActivePartitions(context.Context) []int32 { return sourcer.DefaultPartitions() }
func (n *numbers) TotalPartitions(context.Context) *int32   { return nil }

// dropOdd drops messages whose key says so.
func dropOdd(_ context.Context, keys []string, d mapper.Datum) mapper.Messages {
	if len(keys) > 0 && keys[0] == "drop" {
		return mapper.Messages{mapper.MessageToDrop()}
	}
	return mapper.Messages{mapper.NewMessage(d.Value())}
}

// discard takes 20 ms for a call.
func discard(_ context.Context, in <-chan sinker.Datum) (responses sinker.Responses) {
	for d := range in {
		responses = append(responses, sinker.ResponseOK(d.ID()))
	}
	time.Sleep(20 * time.Millisecond)
	return responses
}
