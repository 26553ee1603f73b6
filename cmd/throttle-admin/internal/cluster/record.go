package cluster

import (
	"errors"

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
	WaitTimes    waitTimes       `json:"waitTimes"`
	Limits       []limit         `json:"limits"`
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
