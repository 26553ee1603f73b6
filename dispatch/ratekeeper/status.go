package ratekeeper

import (
	"context"
	"encoding/json"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
)

// A Status describes a ratekeeper and its last decisions.
type Status struct {
	Keeper    string           `json:"keeper"`
	Term      int64            `json:"term"`
	Time      float64          `json:"time"`              // on the permit store's clock, seconds
	Replicas  int              `json:"replicas"`          // that report, plus backends over HTTP
	Tracked   int              `json:"tracked"`           // known ids
	LeftOut   int              `json:"leftOut,omitempty"` // ids whose cost counts as load by others
	Refused   []string         `json:"refused,omitempty"` // faults of reports
	Decisions []quota.Decision `json:"decisions"`
	Readers   []quota.Reader   `json:"readers,omitempty"`  // of backends near their targets
	Backends  []quota.Backend  `json:"backends,omitempty"` // that report, the most loaded first
}

// maxShown bounds the decisions, and the readers, in a published Status and in the log of a pass.
// maxBackends bounds the backends that are published, and maxRefused the refused reports.
const (
	maxShown    = 3000
	maxBackends = 500
	maxRefused  = 100
)

// published returns what is published of a status: as much as one record can have.
func (s Status) published() (text []byte, err error) {
	for shown := maxShown; ; shown /= 2 {
		s.Decisions = s.Decisions[:min(len(s.Decisions), shown)]
		s.Readers = s.Readers[:min(len(s.Readers), shown)]
		s.Backends = s.Backends[:min(len(s.Backends), shown, maxBackends)]
		text, err = json.Marshal(s)
		if err != nil || shown == 0 || permits.CheckRecord(text) == nil {
			return text, err
		}
	}
}

// Decided returns the Status that the ratekeeper of a cluster has published in the latest term; ok
// is false if there is none.
func Decided(
	ctx context.Context, store dispatch.PermitStore, cluster string,
) (s Status, ok bool, err error) {
	texts, err := store.Published(ctx, permits.RatekeeperOf(cluster))
	if err != nil {
		return Status{}, false, err
	}
	for _, text := range texts {
		var one Status
		if json.Unmarshal(text, &one) == nil && (!ok || one.Term > s.Term) {
			s, ok = one, true
		}
	}
	return s, ok, nil
}
