package etcdpermits

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// maxUsed is the part of etcd's quota that its database may use before permits are written no
// more. The rest is for policies: at its quota, etcd refuses all writes.
const maxUsed = 0.8

// defaultQuota is the quota of an etcd that does not tell it, as before 3.6, and has no setting.
const defaultQuota = 2 << 30

// Between two looks etcd grows by no more than what is free, if all replicas together write at most
// maxGrowth bytes a second.
const (
	maxGrowth = 32 << 20
	often     = 100 * time.Millisecond
	seldom    = 30 * time.Second
)

// space is how full etcd is.
type space struct {
	mu   sync.Mutex
	full error // nil: permits may be written
}

// err returns why permits must not be written; nil if they may.
func (s *space) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full
}

// run looks at how full etcd is until ctx ends.
func (s *space) run(ctx context.Context, conn grpc.ClientConnInterface) {
	server := pb.NewMaintenanceClient(conn)
	for next := often; ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		status, err := server.Status(bounded, &pb.StatusRequest{})
		cancel()
		if err == nil {
			next = s.look(status.DbSizeInUse, status.DbSizeQuota)
		} else { // the requests themselves fail, too, as a rule
			next = min(2*next, time.Second)
		}
		pause(ctx, next*3/4+rand.N(next/2))
	}
}

// look takes in the size of the data and the quota in bytes, 0 if etcd does not tell it, and
// returns when to look again. etcd compares the size of its file with the quota. The file also has
// free pages, which a compaction leaves: they are used before the file grows, and the file becomes
// smaller only by a defragmentation. So what is left for policies is the quota without the pages in
// use, and permits may be written again after a compaction.
func (s *space) look(inUse, quota int64) (next time.Duration) {
	told := ""
	if quota <= 0 {
		quota, told = defaultQuota, " (the default: it does not tell its own, as before etcd 3.6)"
	}
	free := int64(maxUsed*float64(quota)) - inUse
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = nil
	if free < 0 {
		s.full = fmt.Errorf("etcd uses %d of its quota of %d MiB%s, and the rest is kept for policies: "+
			"compact its history (etcd --auto-compaction-retention)", inUse>>20, quota>>20, told)
	}
	return min(max(often, time.Duration(free)*time.Second/maxGrowth), seldom)
}
