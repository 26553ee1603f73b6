package etcdpermits

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// ParseState reads a schedule in etcd.
func ParseState(kv *mvccpb.KeyValue) (schedule.State, error) {
	s, err := parse(kv)
	return s.State, err
}
