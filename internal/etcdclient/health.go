package etcdclient

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Health is how an etcd is.
type Health struct {
	Members  []Member
	Revision int64

	// Uncompacted says that etcd keeps all of the last ManyRevisions.
	Uncompacted bool
}

// ManyRevisions are more than an etcd that is compacted keeps as a rule.
const ManyRevisions = 1_000_000

// A Member is one member of an etcd cluster.
type Member struct {
	Endpoint string // host:port
	Version  string
	InUse    int64    // bytes of its data
	Quota    int64    // bytes; 0 = it does not tell, as before etcd 3.6
	Alarms   []string // and other faults that it reports
	Err      error    // why nothing else is known
}

// Endpoints returns those of the members.
func (h Health) Endpoints() (all []string) {
	for _, m := range h.Members {
		all = append(all, m.Endpoint)
	}
	return all
}

// HealthOf asks the members that a client was opened with how they are. key is one that the user
// may read.
func HealthOf(ctx context.Context, client *clientv3.Client, key string) (h Health, err error) {
	for _, endpoint := range client.Endpoints() {
		_, address, found := strings.Cut(endpoint, "://")
		if !found {
			address = endpoint
		}
		m := Member{Endpoint: address}
		status, err := client.Status(ctx, endpoint)
		if err != nil {
			m.Err = err
		} else {
			m.Version, m.InUse, m.Quota, m.Alarms = status.Version, status.DbSizeInUse, status.DbSizeQuota, status.Errors
		}
		h.Members = append(h.Members, m)
	}
	resp, err := client.Get(ctx, key)
	if err != nil {
		return h, err
	}
	h.Revision = resp.Header.Revision
	if h.Revision > ManyRevisions {
		_, err = client.Get(ctx, key, clientv3.WithRev(h.Revision-ManyRevisions))
		h.Uncompacted = err == nil
		if errors.Is(err, rpctypes.ErrCompacted) {
			err = nil
		}
	}
	return h, err
}
