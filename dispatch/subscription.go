package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Subscription is one consumer's handle to the limits of a topic and a subscription. Handles of
// the same topic and name in one process share their permits. Any number of goroutines may use it
// at once. A nil *Subscription limits nothing.
type Subscription struct {
	handle  engine.Handle
	limiter *Limiter
	id      resolve.LaneID

	parent   *Subscription // of a handle for a tag; nil: a handle of its own
	tagged   sync.Map      // *Subscription by tag of the messages
	taggedMu sync.Mutex    // guards tags, and additions to tagged
	tags     int           // number of handles for tags
}

// A SubscriptionOption changes how a Subscription is opened.
type SubscriptionOption func(*Subscription)

// WithTenantGroup sets the tenant whose quota applies: that of tenant:NAME, whatever the tag.
// Default: the quota of the tag, or else of the topic's tenant.
func WithTenantGroup(name string) SubscriptionOption {
	return func(s *Subscription) { s.id.Owner.TenantGroup = name }
}

// WithTag sets the tag whose quota applies, if tag:NAME has one and there is no tenant group.
func WithTag(name string) SubscriptionOption {
	return func(s *Subscription) { s.id.Owner.Tag = name }
}

// WithHoldsUp says that messages of these topics, given by their full names, wait as long as a
// caller of this Subscription does: their consumer reads them in one line. Its own topic may be
// among them. Stats and explain show it. topics must not be changed later.
func WithHoldsUp(topics ...string) SubscriptionOption {
	return func(s *Subscription) { s.handle.HoldsUp = topics }
}

// Subscription opens a handle. topic is a full name such as kafka://public/default/orders. name is
// a Pulsar subscription, a Kafka consumer group or a Numaflow vertex. The error names what is
// invalid, or is ErrClosed.
func (l *Limiter) Subscription(
	topic, name string, opts ...SubscriptionOption,
) (*Subscription, error) {
	t, err := policy.ParseTopic(topic)
	s := &Subscription{limiter: l, id: resolve.LaneID{Topic: t, Subscription: name}}
	for _, opt := range opts {
		opt(s)
	}
	err = errors.Join(err, policy.ValidateSubscription(name), s.id.Owner.Validate())
	if err != nil {
		return nil, fmt.Errorf("dispatch: open a subscription: %w", err)
	}
	if err := l.engine.Open(&s.handle, s.id); err != nil {
		return nil, err
	}
	return s, nil
}

// Close closes this handle. When the last handle of a subscription is closed, waiting callers get
// ErrClosed, and allocated permits go back unless a new handle uses them at once. Messages in
// flight count until they are Done. A second call does nothing.
func (s *Subscription) Close() error {
	if s == nil || s.parent != nil {
		return nil
	}
	s.taggedMu.Lock() // no handle for a tag is added meanwhile
	defer s.taggedMu.Unlock()
	s.limiter.engine.CloseAll(slices.Collect(s.handles()))
	return nil
}

// Acquire waits until every limit that applies has a permit, and takes up to max permits. Callers
// are served in order of arrival. If ctx ends during the wait, nothing is taken, and the error
// wraps context.Cause(ctx). A permit that is available is granted even if ctx has ended. A max of
// 0 or less returns an empty Grant at once.
func (s *Subscription) Acquire(ctx context.Context, max int) (Grant, error) {
	if s == nil {
		return Grant{n: max}, nil
	}
	lane := s.handle.Lane
	a := lane.Admission()
	if a == nil {
		return Grant{n: max}, nil
	}
	share := a.Only
	if share != nil && max > 0 && max <= engine.MaxPermits && !lane.Waited() &&
		share.TakeAll(int64(max)) {
		return Grant{n: max, admission: a, taken: a.Step()}, nil
	}
	return s.wait(ctx, a, max, -1)
}

// wait is Acquire if the fast path fails: there are several limits, or no permit is available.
func (s *Subscription) wait(
	ctx context.Context, a *engine.Admission, max int, bytes int64,
) (Grant, error) {
	if n := s.handle.Lane.TakeSeveral(a, int64(max)); n > 0 {
		return Grant{n: int(n), admission: a, taken: a.Step()}, nil
	}
	g, err := s.handle.Lane.Acquire(ctx, max, bytes)
	return grantOf(g), err
}

// AcquireSized is Acquire for one message that is already in memory: exactly its bytes are
// charged.
func (s *Subscription) AcquireSized(ctx context.Context, bytes int64) (Grant, error) {
	if s == nil {
		return Grant{n: 1}, nil
	}
	lane := s.handle.Lane
	a := lane.Admission()
	if a == nil {
		return Grant{n: 1}, nil
	}
	if share := a.Only; share != nil && !lane.Waited() && share.TakeAll(1) {
		return Grant{n: 1, admission: a, taken: a.Step()}, nil
	}
	return s.wait(ctx, a, 1, min(max(0, bytes), engine.MaxPermits))
}

// TryAcquire takes up to max permits if some are available now. It does not wait, with one
// exception: with sharing.mode strict, it waits for the permit store's answer whether a slot is
// free, unless the time of the next slot is known. If it is refused, next is the time to retry;
// the refusal counts as demand, so that permits are requested for the retry.
func (s *Subscription) TryAcquire(max int) (g Grant, next time.Time, ok bool) {
	if s == nil {
		return Grant{n: max}, time.Time{}, true
	}
	lane := s.handle.Lane
	a := lane.Admission()
	if a == nil {
		return Grant{n: max}, time.Time{}, true
	}
	if share := a.Only; share != nil && max > 0 {
		if next, refused := share.Refused(); refused {
			return Grant{}, next, false
		}
	}
	granted, next, ok := lane.TryAcquire(max)
	return grantOf(granted), next, ok
}

// ReportBacklog reports how many messages this handle's consumer has still to read, over all
// partitions that it owns; negative means unknown. A report is valid for five seconds. A
// subscription is caught up when every handle of this process is: at or under caughtUp.backlog
// (default 100), and from then on until it is over twice that.
func (s *Subscription) ReportBacklog(messages int64) {
	if s != nil {
		s.taggedMu.Lock()
		defer s.taggedMu.Unlock()
		for h := range s.handles() {
			s.limiter.engine.ReportBacklog(h, messages)
		}
	}
}

// ReportReadAhead reports how many messages this handle's consumer may hold in memory before their
// permits: its queue, over all partitions. It has no effect on limits; throttle-admin doctor warns
// of consumers that hold messages for long. The last report counts; 0 = none.
func (s *Subscription) ReportReadAhead(messages int64) {
	if s != nil {
		s.taggedMu.Lock()
		defer s.taggedMu.Unlock()
		for h := range s.handles() {
			s.limiter.engine.ReportReadAhead(h, messages)
		}
	}
}

// Limited reports whether a limit applies now. If not, as for a subscription that is caught up,
// Acquire returns at once and charges nothing. It costs one atomic load.
func (s *Subscription) Limited() bool { return s != nil && s.handle.Lane.Admission() != nil }

// Paced reports whether a limit with strict sharing applies now. Its permits come one at a time,
// and each must be used at once.
func (s *Subscription) Paced() bool {
	if s == nil {
		return false
	}
	a := s.handle.Lane.Admission()
	return a != nil && a.Paced()
}

// Do waits for a permit and calls f, whose error it returns. The permit is spent, whatever f
// returns. The message is in flight while f runs.
func (s *Subscription) Do(ctx context.Context, f func(context.Context) error) error {
	g, err := s.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	defer g.spent()
	return f(ctx)
}

// TryDo calls f if a permit is available now, and otherwise skips it; ran reports which.
func (s *Subscription) TryDo(
	ctx context.Context, f func(context.Context) error,
) (ran bool, err error) {
	g, _, ok := s.TryAcquire(1)
	if !ok {
		return false, nil
	}
	defer g.spent()
	return true, f(ctx)
}

// Throttled returns a function that waits for a permit and then calls f.
func Throttled[In, Out any](
	s *Subscription, f func(context.Context, In) (Out, error),
) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		g, err := s.Acquire(ctx, 1)
		if err != nil {
			return out, err
		}
		defer g.spent()
		return f(ctx, in)
	}
}

// Reporting returns a function that calls f and reports the outcome of each call: [OutcomeOf] its
// error, or failed if it panics; the panic continues. Put Throttled around it, as in Throttled(s,
// Reporting(s, f)), so that waiting for a permit is not reported. Report a call either in f or by
// Reporting: a call that is reported twice counts twice.
func Reporting[In, Out any](
	s *Subscription, f func(context.Context, In) (Out, error),
) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		o, retryAfter := OutcomeFailed, time.Duration(0)
		defer func() { s.ReportOutcome(o, retryAfter) }()
		out, err := f(ctx, in)
		o, retryAfter = OutcomeOf(err)
		return out, err
	}
}
