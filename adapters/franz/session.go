package franzthrottle

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Session is a kgo.GroupTransactSession whose records wait for their permits. It has the methods
// of a kgo.GroupTransactSession, which behave as kgo documents unless noted here.
type Session struct {
	*kgo.GroupTransactSession

	client *Client
}

// NewSession opens a kgo.GroupTransactSession whose records wait for permits of lim. With a nil lim
// they do not wait. The error is that of kgo.NewGroupTransactSession, or as of [New].
func NewSession(lim *dispatch.Limiter, opts []kgo.Opt, more ...Option) (*Session, error) {
	if lim == nil {
		inner, err := kgo.NewGroupTransactSession(opts...)
		if err != nil {
			return nil, err
		}
		return &Session{inner, &Client{Client: inner.Client()}}, nil
	}
	c, opts, err := open(lim, opts, more)
	if err == nil && !c.settings.transactional {
		err = errors.New("franzthrottle: NewSession: want kgo.TransactionalID")
	}
	if err != nil {
		return nil, err
	}
	inner, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		return nil, err
	}
	c.start(inner.Client())
	return &Session{inner, c}, nil
}

// Throttled returns the session's client, as [New] returns one. [kgo.GroupTransactSession.Client]
// is kgo's own, whose polls do not wait.
func (s *Session) Throttled() *Client { return s.client }

// PollFetches is that of [Client].
func (s *Session) PollFetches(ctx context.Context) kgo.Fetches { return s.client.PollFetches(ctx) }

// PollRecords is that of [Client].
func (s *Session) PollRecords(ctx context.Context, max int) kgo.Fetches {
	return s.client.PollRecords(ctx, max)
}

// AllowRebalance is kgo's.
func (s *Session) AllowRebalance() { s.client.AllowRebalance() }

// Close is that of [Client].
func (s *Session) Close() { s.client.Close() }

// CloseAllowingRebalance is Close.
func (s *Session) CloseAllowingRebalance() { s.Close() }

// End ends the transaction, as kgo's does. Only the offsets of records that were returned are
// committed with it, which takes the place of a kgo.PreTxnCommitFnContext. Records that are kept
// are read again, since kgo continues where it has committed.
func (s *Session) End(ctx context.Context, commit kgo.TransactionEndTry) (committed bool, err error) {
	c := s.client
	if c.lim == nil {
		return s.GroupTransactSession.End(ctx, commit)
	}
	c.alone(func() {
		kept := c.shelf.keptFrom()
		committed, err = s.GroupTransactSession.End(kgo.PreTxnCommitFnContext(ctx, c.shelf.cutTxn), commit)
		if err != nil && len(c.Client.UncommittedOffsets()) > 0 {
			return // kgo has ended nothing, and goes on where it is
		}
		c.shelf.drop(everything)
		if committed {
			c.Client.SetOffsets(kept)
		}
	})
	return committed, err
}

// keptFrom returns the offsets of the first records that are kept.
func (s *shelf) keptFrom() map[string]map[int32]kgo.EpochOffset {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]map[int32]kgo.EpochOffset{}
	for name, t := range s.topics {
		for _, b := range slices.Backward(t.kept) {
			if all[name] == nil {
				all[name] = map[int32]kgo.EpochOffset{}
			}
			all[name][b.Partition] = kgo.EpochOffset{Epoch: t.positions[b.Partition].epoch, Offset: b.Records[0].Offset}
		}
	}
	return all
}
