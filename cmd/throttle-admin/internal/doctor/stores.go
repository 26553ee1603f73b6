package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/configstore"
	configetcd "github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	etcdpermits "github.com/dispatchthrottle/throttle/dispatch/permits/etcd"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/internal/etcdclient"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/policy"
)

// The facts are what all checks are made from.
type facts struct {
	cluster string
	now     time.Time
	stores  []store // the policy store, and then the permit store if there is one

	snapshot   configstore.Snapshot
	set        *policy.Set
	historyErr error            // why the history cannot be read
	replicas   []dispatch.Stats // of the cluster, sorted by name
}

// A store is one of the two, as far as it could be looked at.
type store struct {
	name     string // policy store, permit store
	flag     string // that names it
	file     bool
	err      error // why it cannot be read
	requests int
	p50, p99 time.Duration
	offset   time.Duration // of its clock from that of this machine; 0 if it has none

	redis    []redispermits.Server
	etcd     *etcdclient.Health
	etcdErr  error // why its state is not known
	redisErr error

	recordsErr error // why not all status records of replicas can be read
}

// Many requests are measured, within a time.
const (
	requests = 100
	patience = 500 * time.Millisecond
)

// gather looks at the stores. Its error is one in the command line: what cannot be reached is a
// finding.
func gather(ctx context.Context, a *cli.App) (*facts, error) {
	f := &facts{cluster: a.Cluster}
	policies := store{name: "policy store", flag: "--policies", file: strings.HasPrefix(a.PoliciesURL, "file:")}
	err := a.WithStore(ctx, func(ctx context.Context, s configstore.Store) error {
		f.lookAtPolicies(ctx, a, s, &policies)
		return nil
	})
	if err != nil {
		return nil, err
	}
	f.stores = append(f.stores, policies)
	permits, err := a.OpenPermits()
	if err != nil {
		return nil, err
	}
	if permits != nil {
		defer func() { _ = permits.Close() }() // only read from
		f.stores = append(f.stores, f.lookAtPermits(ctx, permits))
	}
	f.now = time.Now()
	f.set, _ = policy.NewSet(f.snapshot.Entries)
	return f, nil
}

func (f *facts) lookAtPolicies(ctx context.Context, a *cli.App, s configstore.Store, view *store) {
	if f.snapshot, view.err = s.List(ctx); view.err != nil {
		return
	}
	if view.file && f.snapshot.Revision == 0 && !strings.HasSuffix(a.PoliciesURL, "?create=true") {
		// A command would create the file, and a replica does not.
		view.err = fmt.Errorf("%s: %w", a.PoliciesURL, fs.ErrNotExist)
		return
	}
	if e, ok := s.(*configetcd.Store); ok {
		health, err := e.Health(ctx)
		view.etcd, view.etcdErr = &health, err
	}
	view.measure(ctx, func(ctx context.Context) error { return cli.Ping(ctx, s) })
	for _, err := range s.History(ctx) {
		f.historyErr = err
		break
	}
}

func (f *facts) lookAtPermits(ctx context.Context, s dispatch.PermitStore) store {
	view := store{name: "permit store", flag: "--permits"}
	ctx, cancel := context.WithTimeout(ctx, cli.StoreTimeout)
	defer cancel()
	key := permits.LimitKey(f.cluster, policy.ClusterScope(), false)
	var sent time.Time
	var told float64
	ping := func(ctx context.Context) (err error) {
		sent = time.Now()
		_, told, err = s.State(ctx, key)
		return err
	}
	if view.err = ping(ctx); view.err != nil {
		return view
	}
	view.measure(ctx, ping)
	switch s := s.(type) {
	case *redispermits.Store:
		middle := sent.Add(time.Since(sent) / 2)
		view.offset = time.Duration(told*float64(time.Second)) - time.Duration(middle.UnixNano())
		view.redis, view.redisErr = s.Servers(ctx)
	case *etcdpermits.Store:
		health, err := s.Health(ctx, f.cluster)
		view.etcd, view.etcdErr = &health, err
	}
	f.replicas, view.recordsErr = cli.Published(ctx, s, f.cluster)
	if f.behind() > 0 { // a change may be on its way, and replicas publish once a second
		select {
		case <-time.After(settle):
			f.replicas, view.recordsErr = cli.Published(ctx, s, f.cluster)
		case <-ctx.Done():
		}
	}
	return view
}

// settle is how long a change takes to be in the status records of all replicas.
const settle = 1500 * time.Millisecond

// measure times requests, one after the other.
func (s *store) measure(ctx context.Context, ping func(context.Context) error) {
	var took []time.Duration
	for start := time.Now(); len(took) < requests && time.Since(start) < patience; {
		begin := time.Now()
		if s.err = ping(ctx); s.err != nil {
			return
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	s.requests, s.p50, s.p99 = len(took), took[len(took)/2], took[len(took)*99/100]
}

func (f *facts) unreachable() (found []finding) {
	for _, s := range f.stores {
		if s.err == nil {
			continue
		}
		if mend := grants(s.err); mend != "" {
			found = append(found, finding{warning, "rights", "the " + s.name, s.err.Error(), "It was not looked at.", mend})
			continue
		}
		why := "Replicas keep the last policies that they know; those that start have none, or their cache file."
		if s.flag == "--permits" {
			why = "Replicas share no limits: onOutage says what each of them does."
		}
		mend := "start it, or correct " + s.flag
		switch {
		case s.file && errors.Is(s.err, fs.ErrNotExist):
			mend = "correct " + s.flag + ", or create the file: throttle-admin set SCOPE FIELD=VALUE"
		case s.file:
			mend = "correct the file, or " + s.flag
		}
		found = append(found, finding{fault, "store-unreachable", "the " + s.name, s.err.Error(), why, mend})
	}
	return found
}

func (f *facts) unreadableRecords() (found []finding) {
	for _, s := range f.stores {
		if s.recordsErr == nil {
			continue
		}
		n := unknownState(s, s.recordsErr, "status-unreadable")
		n.Subject, n.Why = "status records of replicas", "Replicas are missing from what doctor looks at."
		if len(f.replicas) == 0 {
			n.Severity = warning
		}
		found = append(found, n)
	}
	return found
}

// slowStore is how long a request takes at most of a store that is near enough.
const slowStore = 50 * time.Millisecond

func (f *facts) slow() (found []finding) {
	for _, s := range f.stores {
		if s.p50 > slowStore {
			found = append(found, finding{warning, "store-slow", "the " + s.name,
				fmt.Sprintf("half of %d requests took more than %s", s.requests, seconds(s.p50)),
				"Limits are shared in longer rounds, a strict replica gets one slot in each request, and changes " +
					"come late.",
				"run it near the replicas, on a machine that is not busy"})
		}
	}
	return found
}

// maxOffset is how far clocks may differ without a finding. maxAge and maxIdleAge are how old the
// status records of active and of idle replicas are at most.
const (
	maxOffset  = time.Second
	maxAge     = 3 * time.Second
	maxIdleAge = 30 * time.Second
)

func (f *facts) clocks() (found []finding) {
	const mend = "run NTP on both machines: chronyc makestep"
	for _, s := range f.stores {
		if s.offset.Abs() > maxOffset {
			found = append(found, finding{warning, "clock", "the " + s.name,
				fmt.Sprintf("its clock is %s from that of this machine", seconds(s.offset)),
				"Temporary policies begin and end by the clock of the machine.", mend})
		}
		for _, r := range f.replicas {
			if r.Time == 0 || s.flag != "--permits" {
				continue
			}
			oldest := maxIdleAge
			if len(r.Subscriptions) > 0 {
				oldest = maxAge
			}
			behind := f.now.Add(s.offset).Sub(time.UnixMilli(r.Time)) // by this machine without a clock
			if behind < -maxOffset || behind > oldest+maxOffset {
				found = append(found, finding{warning, "clock", "replica " + r.Replica,
					fmt.Sprintf("its clock is about %s from that of the %s, or of this machine", seconds(behind), s.name),
					"Temporary policies begin and end there at another time than elsewhere.", mend})
			}
		}
	}
	return found
}

func (f *facts) redis() (found []finding) {
	for _, s := range f.stores {
		if s.redisErr != nil {
			found = append(found, unknownState(s, s.redisErr, "redis-unknown"))
		}
		for _, r := range s.redis {
			host, port, _ := net.SplitHostPort(r.Address)
			run := fmt.Sprintf("redis-cli -h %s -p %s CONFIG SET ", host, port)
			subject := "Redis " + r.Address
			if major, _ := strconv.Atoi(strings.Split(r.Version, ".")[0]); major < 7 {
				found = append(found, finding{fault, "redis-version", subject, "it is version " + r.Version,
					"The scripts need 7.0 or later.", "install Redis 7 or later"})
			}
			if r.MaxMemory > 0 && r.Eviction != "noeviction" {
				found = append(found, finding{fault, "redis-eviction", subject, "maxmemory-policy is " + r.Eviction,
					"When memory runs out, Redis deletes schedules, and limits begin again with a burst.",
					run + "maxmemory-policy noeviction"})
			}
			if r.MaxMemory > 0 && float64(r.UsedMemory) > 0.8*float64(r.MaxMemory) {
				found = append(found, finding{warning, "redis-memory", subject,
					fmt.Sprintf("%d of %d MiB are used", r.UsedMemory>>20, r.MaxMemory>>20),
					"Without memory, Redis refuses allocations, and onOutage applies.",
					run + fmt.Sprintf("maxmemory %d", 2*r.UsedMemory)})
			}
			if !r.AppendOnly {
				found = append(found, finding{hint, "redis-persistence", subject, "appendonly is no",
					"After a crash it is empty: schedules, pools and the rates of quotas begin again.",
					run + "appendonly yes"})
			}
		}
	}
	return found
}

func (f *facts) etcd() (found []finding) {
	seen := map[string]bool{} // both stores may be in one
	for _, s := range f.stores {
		if s.etcd == nil {
			continue
		}
		if s.etcdErr != nil {
			found = append(found, unknownState(s, s.etcdErr, "etcd-unknown"))
		}
		for _, m := range s.etcd.Members {
			if seen[m.Endpoint] {
				continue
			}
			seen[m.Endpoint] = true
			subject, run := "etcd "+m.Endpoint, "etcdctl --endpoints "+m.Endpoint+" "
			free := fmt.Sprintf("%scompact %d && %sdefrag", run, s.etcd.Revision, run)
			if m.Err != nil {
				found = append(found, finding{warning, "etcd-member", subject, m.Err.Error(),
					"The cluster has one member less to lose.", "start it, or correct its address"})
				continue
			}
			for _, alarm := range m.Alarms {
				mend := "see its log; replace the member if its data are damaged"
				if strings.Contains(alarm, "NOSPACE") {
					mend = free + " && " + run + "alarm disarm"
				}
				found = append(found, finding{fault, "etcd-alarm", subject, alarm,
					"etcd may refuse writes: no policy can be changed then, not even to pause.", mend})
			}
			if m.Quota > 0 && float64(m.InUse) > 0.8*float64(m.Quota) {
				found = append(found, finding{warning, "etcd-space", subject,
					fmt.Sprintf("%d MiB of its quota of %d MiB are in use", m.InUse>>20, m.Quota>>20),
					"Permits are written no more, and above the quota no policies.", free})
			}
		}
		if s.etcd.Uncompacted && !seen["uncompacted"] {
			seen["uncompacted"] = true
			found = append(found, finding{warning, "etcd-compaction", "etcd of the " + s.name,
				fmt.Sprintf("the last %d revisions are all kept", etcdclient.ManyRevisions),
				"Without compaction, etcd grows until its quota is full.",
				fmt.Sprintf("etcdctl --endpoints %s compact %d # and start etcd with --auto-compaction-retention=5m",
					strings.Join(s.etcd.Endpoints(), ","), s.etcd.Revision)})
		}
	}
	return found
}

// unknownState is the finding that a server does not tell its state.
func unknownState(s store, err error, check string) finding {
	return finding{hint, check, "the " + s.name, err.Error(), "Its settings were not looked at.",
		cmp.Or(grants(err), "see the reason")}
}

// grants says how the user of this command gets its rights, if err is that it lacks one; else "".
func grants(err error) string {
	denied, ok := errors.AsType[*role.DeniedError](err)
	if !ok {
		return ""
	}
	return "give the user of this command the rights of a viewer: throttle-admin rights " + denied.Store + " --role viewer"
}

func (f *facts) marker() []finding {
	s := f.snapshot
	if f.stores[0].err != nil || s.Plain {
		return nil
	}
	empty := policy.CountPermanent(s.Entries) == 0
	if err := s.Marker.Check(s.Entries, f.now); err != nil && s.Marker != (configstore.Marker{}) {
		return []finding{{fault, "store-not-followed", "the policy store", err.Error(),
			"Replicas keep the policies that they had before.", f.adoption(" --id " + cli.Argument(s.Marker.ID))}}
	}
	if s.Marker == (configstore.Marker{}) && !empty {
		return []finding{{warning, "store-unmarked", "the policy store",
			"it has policies and no marker", "Replicas do not notice another policy store in its place.",
			f.adoption("")}}
	}
	return nil
}

func (f *facts) history() []finding {
	if f.historyErr == nil || f.stores[0].err != nil {
		return nil
	}
	if mend := grants(f.historyErr); mend != "" {
		return []finding{{hint, "history-unknown", "the history of changes", f.historyErr.Error(),
			"It was not looked at.", mend}}
	}
	return []finding{{warning, "history", "the history of changes", f.historyErr.Error(),
		"Changes are refused, since they cannot be recorded; pause is not.",
		"see the reason; meanwhile change policies with --without-history"}}
}
