// Package engine decides when the callers of a process get their permits: it keeps a lane of
// callers for each subscription, and one loop that releases permits, serves callers and sends
// requests to the permit store.
//
// Any number of goroutines may call its exported methods. Callers in a hurry read atomics only.
// Engine.mu is held where an unexported method is called, with these exceptions: callers run what
// is in acquire.go, try.go, serve.go and settle.go, where comments say whether the lane's queue is
// locked; any goroutine may use what says so.
package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Store is what the engine needs of a permit store; see dispatch.PermitStore.
type Store interface {
	Do(ctx context.Context, requests []*permits.Request)
	Timeout() time.Duration
}

// An Engine is the lanes of one process, and their loop.
type Engine struct {
	core
	log          *slog.Logger
	store        Store
	instant      bool // the store answers without waiting: it is called with Engine.mu held
	availability availability
	running      sync.WaitGroup // what Close waits for
	stop         context.CancelFunc

	mu            sync.Mutex // guards these, and fields of lanes and subscriptions that say so
	closed        bool
	journal       journal
	terms         resolve.Terms
	ratesReadAt   time.Time // when the rates in terms were read
	lanes         map[resolve.LaneID]*Lane
	ended         map[resolve.LaneID]*Lane // without handles, but with what a new lane takes over
	subscriptions map[name]*subscription
	waiters       waiters
	agenda        agenda
	ties          map[[2]policy.Scope]bool                  // that have been logged
	started       map[quota.ID]int64                        // messages since the last call of Started
	withQuota     int                                       // of lanes, how many have a quota
	rivalled      bool                                      // a share may have a rival
	peaks         struct{ lanes, ended, subscriptions int } // largest sizes of these maps

	sent int // calls of the store that are not answered; the loop's own
}

// A name is a subscription's.
type name struct {
	topic        policy.Topic
	subscription string
}
