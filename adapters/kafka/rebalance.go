package kafkathrottle

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/dispatchthrottle/throttle/adapters/internal/receiver"
)

// What happens in a rebalance:
//
//  1. kafka-go ends the generation of the group, commits what is to be committed, and joins the
//     group again. The observer below sees the join, and starts the Reader's next generation.
//  2. That ends the wait of a message for its permit: its partition may be revoked.
//  3. afterRebalance waits until the group runs again. By then kafka-go has dropped what it had
//     read ahead, so the message that waited is dropped too. No message counts as in flight.
//  4. The owner of the partition, which may be this Reader, reads from the committed offset.

// observeJoins makes kafka-go call joining each time before it joins the group, when the generation
// before has ended with its last commits.
func observeJoins(cfg *kafka.ReaderConfig, joining func()) {
	cfg.GroupBalancers = slices.Clone(cfg.GroupBalancers)
	for i, b := range cfg.GroupBalancers {
		if observer, ok := b.(joinObserver); ok { // of another Reader, from its kafka.Reader's Config
			cfg.GroupBalancers[i] = observer.GroupBalancer
		}
	}
	cfg.GroupBalancers[0] = joinObserver{cfg.GroupBalancers[0], joining}
}

type joinObserver struct {
	kafka.GroupBalancer
	joining func()
}

// UserData is called for each request to join the group.
func (o joinObserver) UserData() ([]byte, error) {
	o.joining()
	return o.GroupBalancer.UserData()
}

// defaultRebalanceTimeout is kafka-go's.
const defaultRebalanceTimeout = 30 * time.Second

// afterRebalance waits until the group's next generation runs, and drops the message in hand, if
// there is one.
//
// Before it runs, kafka-go still returns messages of the generation that has ended. They are read
// again; but a commit of one with a higher offset than the message in hand would lose that. A
// commit of no messages returns as soon as the commit loop of the next generation runs. If that
// takes longer than the RebalanceTimeout, the message stays in hand.
func (r *Reader) afterRebalance(ctx context.Context) error {
	timeout := cmp.Or(r.config.RebalanceTimeout, defaultRebalanceTimeout)
	running, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(r.receiver.Closing(), cancel)
	defer stop()
	err := r.Reader.CommitMessages(running)
	switch {
	case r.receiver.Closing().Err() != nil:
		return receiver.ErrClosing
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // the next call waits again
	case err == nil:
		r.drop()
	}
	r.inFlight.SettleAll() // they will not be committed here
	return nil
}
