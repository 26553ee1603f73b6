package numaflowthrottle

import (
	"context"

	"github.com/numaproj/numaflow-go/pkg/mapstreamer"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// MapStream is [Map] for a map that streams its results.
func MapStream(
	m mapstreamer.MapStreamer, lim *dispatch.Limiter, opts ...Option,
) (mapstreamer.MapStreamer, error) {
	if lim == nil {
		return m, nil
	}
	v, err := newVertex(lim, opts)
	if err != nil {
		return nil, err
	}
	return &mapStreamer{m, v}, nil
}

type mapStreamer struct {
	inner mapstreamer.MapStreamer
	*vertex
}

// MapStream is the user's, with a permit.
func (s *mapStreamer) MapStream(
	ctx context.Context, keys []string, d mapstreamer.Datum, out chan<- mapstreamer.Message,
) {
	bytes := size(d.Value(), keys, d.Headers())
	grant, err := s.admit(ctx, bytes, d.Headers())
	if err != nil {
		s.refuse(ctx, err)
		select {
		case out <- mapstreamer.MessageToNack(nack(err)):
		case <-ctx.Done():
		}
		close(out)
		return
	}
	used := 0
	defer func() { grant.Done(used, int64(used)*bytes) }() // the user's code may panic
	if !grant.Limited() || s.chargeDrops {
		s.inner.MapStream(ctx, keys, d, out)
		used = 1
		return
	}
	in, returned := make(chan mapstreamer.Message), make(chan struct{})
	kept := passResults(ctx, in, out, returned)
	func() {
		defer close(returned)
		s.inner.MapStream(ctx, keys, d, in)
	}()
	if <-kept {
		used = 1
	}
}

// passResults passes results from in to out, in a goroutine. The channel it returns tells, at the
// end, whether a result was not dropped. It ends when in is closed; or, once the user's code has
// returned, with ctx: until then that code may send, and afterwards others may do so for it. If
// the user's code panics, the SDK ends ctx.
func passResults(
	ctx context.Context, in <-chan mapstreamer.Message, out chan<- mapstreamer.Message,
	returned <-chan struct{},
) <-chan bool {
	done := make(chan bool, 1)
	go func() {
		kept := false
		defer func() { done <- kept }()
		ended := (<-chan struct{})(nil)
		for {
			select {
			case m, open := <-in:
				if !open { // the user's code has closed it, which tells the SDK that these were all
					close(out)
					return
				}
				kept = kept || !dropped([]mapstreamer.Message{m})
				select {
				case out <- m:
				case <-ctx.Done():
				}
			case <-returned:
				returned, ended = nil, ctx.Done()
			case <-ended:
				return
			}
		}
	}()
	return done
}
