package cluster

import (
	"errors"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A Record is what views show of a status record. It has a fraction of the fields of
// [dispatch.Stats], since hundreds of records are decoded in a second.
type Record struct {
	Replica       string         `json:"replica"`
	Cluster       string         `json:"cluster"`
	Time          int64          `json:"time"` // Unix milliseconds, by the replica's clock
	Subscriptions []subscription `json:"subscriptions"`
	More          int            `json:"more"`
}

// maxAge is how old a record may be that is read for the first time, in milliseconds.
const maxAge = 5000

// ahead returns by how many milliseconds the replica's clock is ahead of that by which the record
// was read first; 0 if it may be right.
func (r *Record) ahead(read time.Time) int64 {
	if d := r.Time - read.UnixMilli(); d > maxAge || d < -maxAge {
		return d
	}
	return 0
}

// A subscription is as in [dispatch.SubscriptionStats].
type subscription struct {
	Topic        string          `json:"topic"`
	Subscription string          `json:"subscription"`
	Owner        string          `json:"owner"`
	CaughtUp     bool            `json:"caughtUp"`
	Exempt       bool            `json:"exempt"`
	Paused       bool            `json:"paused"`
	Backlog      int64           `json:"backlog"`
	BehindSince  int64           `json:"behindSince"`
	Waiting      int             `json:"waiting"`
	Reason       dispatch.Reason `json:"reason"`
	Waits        waits           `json:"waits"`
	WaitTimes    waitTimes       `json:"waitTimes"`
	Limits       []limit         `json:"limits"`
}

// waits are how many calls have had to wait for each limit of several topics, all time. A struct is
// decoded faster than a map.
type waits struct {
	NamespaceMessages int64 `json:"'namespace\\'s message rate'"`
	NamespaceBytes    int64 `json:"'namespace\\'s byte rate'"`
	TenantMessages    int64 `json:"'tenant\\'s message rate'"`
	TenantBytes       int64 `json:"'tenant\\'s byte rate'"`
	ClusterMessages   int64 `json:"'cluster\\'s message rate'"`
	ClusterBytes      int64 `json:"'cluster\\'s byte rate'"`
}

// of returns those for a reason; ok is false if that is not a limit of several topics.
func (w *waits) of(r dispatch.Reason) (n int64, ok bool) {
	switch r {
	case dispatch.ReasonNamespaceMessages:
		return w.NamespaceMessages, true
	case dispatch.ReasonNamespaceBytes:
		return w.NamespaceBytes, true
	case dispatch.ReasonTenantMessages:
		return w.TenantMessages, true
	case dispatch.ReasonTenantBytes:
		return w.TenantBytes, true
	case dispatch.ReasonClusterMessages:
		return w.ClusterMessages, true
	case dispatch.ReasonClusterBytes:
		return w.ClusterBytes, true
	}
	return 0, false
}

// waitTimes is as in [dispatch.Histogram], without the sum.
type waitTimes struct {
	Count   int64                                `json:"count"`
	Buckets [len(dispatch.WaitBuckets) + 1]int64 `json:"buckets"`
}

func (w waitTimes) histogram() dispatch.Histogram {
	return dispatch.Histogram{Count: w.Count, Buckets: w.Buckets}
}

// A limit is as in [dispatch.LimitStats].
type limit struct {
	Key         string          `json:"key"`
	Reason      dispatch.Reason `json:"limit"`
	Shadow      bool            `json:"shadow"`
	Bypassed    bool            `json:"bypassed"`
	Rate        float64         `json:"rate"`
	Ramp        float64         `json:"ramp"`
	Granted     int64           `json:"granted"`
	Returned    int64           `json:"returned"`
	Owed        int64           `json:"owed"`
	Allocations int64           `json:"allocations"`
}

// Parse reads a status record.
func Parse(text []byte) (r Record, err error) {
	if err = json.Unmarshal(text, &r); err == nil && r.Replica == "" {
		err = errors.New("replica: missing")
	}
	return r, err
}
