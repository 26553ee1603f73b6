package numaflowthrottle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// A vertex is what wrappers have in common.
type vertex struct {
	options
	sub      *dispatch.Subscription
	ahead    ahead
	handBack context.Context // ends when waiting messages are handed back; nil: never
	closed   sync.Once       // logs that the Limiter is closed
}

func newVertex(lim *dispatch.Limiter, opts []Option) (*vertex, error) {
	v := &vertex{options: newOptions(opts)}
	if v.topic == "" {
		topic, err := Topic()
		if err != nil {
			return nil, err
		}
		v.topic = topic.String()
	}
	topic, err := policy.ParseTopic(v.topic)
	if err != nil {
		return nil, fmt.Errorf("numaflowthrottle: %w", err)
	}
	v.sub, err = lim.Subscription(v.topic, cmp.Or(v.subscription, topic.Name), v.owner...)
	if err != nil {
		return nil, fmt.Errorf("numaflowthrottle: %w", err)
	}
	v.ahead = ahead{sub: v.sub, single: true}
	v.handBack = handBackAfter(v.process)
	return v, nil
}

// unlimited reports whether messages need no permits now.
func (v *vertex) unlimited() bool {
	return !v.sub.Limited() && (v.tagOf == nil || !v.sub.TagsLimited())
}

// permit waits for the permit of a message.
func (v *vertex) permit(
	ctx context.Context, bytes int64, headers map[string]string,
) (dispatch.Grant, error) {
	sub := v.sub
	if v.tagOf != nil {
		sub = sub.Tagged(v.tagOf(headers))
	}
	return sub.AcquireSized(ctx, bytes)
}

// admit returns the permit of a message of a map, which comes by itself and concurrently with
// others: a permit that was acquired ahead, or one that it waits for.
func (v *vertex) admit(
	ctx context.Context, bytes int64, headers map[string]string,
) (dispatch.Grant, error) {
	if v.unlimited() {
		return dispatch.Grant{}, nil
	}
	if v.nacks { // a map without this option hands nothing back
		waiting, cancel := v.patience(ctx)
		defer cancel()
		ctx = waiting
	}
	if v.tagOf != nil { // permits acquired ahead may be those of other limits
		return v.permit(ctx, bytes, headers)
	}
	if grant, ok := v.ahead.take(); ok {
		return grant, nil
	}
	v.ahead.enter()
	start := time.Now()
	defer func() { v.ahead.leave(waitedSince(start)) }()
	return v.permit(ctx, bytes, headers)
}

// waitedSince reports whether the permits were not there at once.
func waitedSince(start time.Time) bool { return time.Since(start) > time.Millisecond }

// An admission admits the messages of a batch, one after the other.
type admission struct {
	*vertex
	waited bool // a message of the batch had to wait
}

func (v *vertex) admission() *admission {
	v.ahead.enter()
	return &admission{vertex: v}
}

// next returns the permit of the next message.
func (a *admission) next(
	ctx context.Context, bytes int64, headers map[string]string,
) (dispatch.Grant, error) {
	if a.tagOf != nil {
		return a.permit(ctx, bytes, headers)
	}
	if grant, ok := a.ahead.take(); ok {
		return grant, nil
	}
	start := time.Now()
	defer func() { a.waited = a.waited || waitedSince(start) }()
	return a.permit(ctx, bytes, headers)
}

// end ends the admission: the last message has its permit.
func (a *admission) end() { a.ahead.leave(a.waited) }

// limiterClosed reports whether err says that the Limiter is closed, and logs that once. Other
// errors are those of contexts: somebody has stopped waiting.
func (v *vertex) limiterClosed(err error) bool {
	closed := errors.Is(err, dispatch.ErrClosed)
	if closed {
		v.closed.Do(func() {
			v.log.Error("numaflowthrottle: the Limiter was closed before the server has ended;"+
				" close it after Start", "topic", v.topic)
		})
	}
	return closed
}
