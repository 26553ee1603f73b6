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
//     read ahead, so the message that waited is dropped too. Nothing is in flight any more.
//  4. The owner of the partition, which may be this Reader, reads from the committed offset.

// observeJoins has kafka-go call joining whenever it is about to join the group: the generation
// before has ended by then, with its last commits.
func observeJoins(cfg *kafka.ReaderConfig, joining func()) {
	balancers := cfg.GroupBalancers
	if len(balancers) == 0 { // kafka-go's default
		balancers = []kafka.GroupBalancer{
			kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{},
		}
	}
	cfg.GroupBalancers = slices.Clone(balancers)
	cfg.GroupBalancers[0] = joinObserver{balancers[0], joining}
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
// Until then kafka-go still returns messages of the generation that has ended. They are read
// again; but if one behind the message in hand were committed, the message in hand would be lost.
// A commit of no messages returns as soon as the commit loop of the next generation runs. If that
// takes too long, the message in hand stays, and FetchMessage returns what keeps the group from
// running.
func (r *Reader) afterRebalance(ctx context.Context) error {
	timeout := cmp.Or(r.config.RebalanceTimeout, defaultRebalanceTimeout)
	running, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(r.receiver.Closing(), cancel)()
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
