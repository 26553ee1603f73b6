package dispatch

import "time"

// Status is what a replica tells about itself once a second, for explain and top; nothing depends on it.
type Status struct {
	Replica       string               `json:"replica"`
	Version       string               `json:"version"`
	Time          time.Time            `json:"time"` // the replica's clock
	Identity      string               `json:"identity"`
	Revision      int64                `json:"revision"` // of the policies in force
	LedgerAway    bool                 `json:"ledgerAway,omitempty"`
	Subscriptions []SubscriptionStatus `json:"subscriptions,omitempty"`
}

// SubscriptionStatus is one subscription in one replica.
type SubscriptionStatus struct {
	Topic        string  `json:"topic"`
	Subscription string  `json:"subscription"`
	Waiting      int     `json:"waiting"`          // callers
	Reason       string  `json:"reason,omitempty"` // why they wait: see Reason
	CaughtUp     bool    `json:"caughtUp,omitempty"`
	Backlog      int64   `json:"backlog"` // messages; -1 = unknown
	Rate         float64 `json:"rate"`    // messages dispatched a second, averaged
	Share        float64 `json:"share"`   // of the topic's message limit, permits a second; 0 = none booked yet
}
