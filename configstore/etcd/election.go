package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
)

const electionPart = "/elections/"

// electionTTL is the lease of the elected candidate, in seconds: if it dies, another one takes over
// that much later.
const electionTTL = 5

// Elect calls lead when the candidate is elected, with a context that ends with its term, and the
// term's number: etcd's revision at which the candidate joined the election. The lease is 5 s.
// Elect returns nil when ctx ends, else why the term or the campaign ended.
func (s *Store) Elect(
	ctx context.Context, election, candidate string, lead func(ctx context.Context, term int64),
) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	ended := func(doing string, err error) error {
		if s.ctx.Err() == nil && ctx.Err() != nil {
			return nil
		}
		return s.wrap(doing, err)
	}
	granting, granted := context.WithTimeout(ctx, electionTTL*time.Second)
	lease, err := client.Grant(granting, electionTTL)
	granted()
	if err != nil {
		return ended("grant a lease for the election", err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID),
		concurrency.WithTTL(electionTTL), concurrency.WithContext(ctx))
	if err != nil {
		return ended("begin the election", err)
	}
	defer func() { // with a context of its own: ctx may have ended
		leaving, left := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer left()
		session.Orphan()
		_, _ = client.Revoke(leaving, lease.ID) // if that fails, it expires
	}()
	term, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-session.Done():
			end()
		case <-term.Done():
		}
	}()
	e := concurrency.NewElection(session, s.root+electionPart+election)
	if err := e.Campaign(term, candidate); err != nil {
		if term.Err() != nil && ctx.Err() == nil {
			err = errors.New("the lease has ended")
		}
		return ended("wait for the election", err)
	}
	lead(term, e.Rev())
	return nil
}
