package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/adopt"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/doctor"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/policies"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotas"
	"github.com/dispatchthrottle/throttle/dispatch"
	redispermits "github.com/dispatchthrottle/throttle/dispatch/permits/redis"
	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var families = []cli.Family{
	doctor.Commands, policies.Commands, quotas.Commands, adopt.Commands, history.Commands,
}

// A setup is a real etcd, a Redis and two replicas with two subscriptions, without a fault.
type setup struct {
	t                          *testing.T
	etcd                       *services.EtcdNode
	redis                      *services.RedisProcess
	policiesURL, permitsURL    string
	cluster                    string
	limiters                   []*dispatch.Limiter
	orders, refunds            []*dispatch.Subscription
	stopReporting, reportsDone chan struct{}
	unpublish                  func() // ends publish
}

const (
	orders  = "kafka://public/default/orders"
	refunds = "kafka://public/default/refunds"
)

func newSetup(t *testing.T) *setup {
	s := &setup{
		t: t, etcd: services.EtcdWithQuota(t, 32<<20),
		redis:   services.RedisServer(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction"),
		cluster: "standalone",
	}
	s.policiesURL, s.permitsURL = "etcd://"+s.etcd.Endpoint+"/t", services.Patient(s.redis.URL)
	s.admin("set-msg-rate", "public/default", "1000")
	s.admin("set-msg-rate", orders, "500", "--subscription", "billing")
	for i := range 2 {
		lim, err := throttle.Open(t.Context(), s.policiesURL, s.permitsURL, throttle.WithReplica(fmt.Sprint("replica-", i)))
		require.NoError(t, err)
		s.limiters = append(s.limiters, lim)
		t.Cleanup(func() { assert.NoError(t, lim.Close()) })
		for topic, subs := range map[string]*[]*dispatch.Subscription{orders: &s.orders, refunds: &s.refunds} {
			sub, err := lim.Subscription(topic, "billing")
			require.NoError(t, err)
			*subs = append(*subs, sub)
		}
	}
	s.report(true)
	t.Cleanup(func() { s.report(false) })
	return s
}

// report has all subscriptions report a backlog and use a permit now and then, or stop doing so.
func (s *setup) report(on bool) {
	if s.stopReporting != nil {
		close(s.stopReporting)
		<-s.reportsDone
		s.stopReporting = nil
	}
	if !on {
		return
	}
	stop, done := make(chan struct{}), make(chan struct{})
	s.stopReporting, s.reportsDone = stop, done
	go func() {
		defer close(done)
		for {
			for _, sub := range slices.Concat(s.orders, s.refunds) {
				sub.ReportBacklog(1_000_000)
				g, _, _ := sub.TryAcquire(1)
				g.Done(g.N(), 0)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-stop:
				return
			}
		}
	}()
}

func (s *setup) run(args ...string) (status int, stdout, stderr string) {
	return clitest.Run(context.WithoutCancel(s.t.Context()), families,
		append(args, "--policies", s.policiesURL, "--permits", s.permitsURL, "--cluster", s.cluster)...)
}

func (s *setup) admin(args ...string) {
	s.t.Helper()
	status, _, stderr := s.run(args...)
	require.Zero(s.t, status, "%v: %s", args, stderr)
}

// put writes what no throttle-admin would.
func (s *setup) put(key, value string) {
	s.t.Helper()
	_, err := s.etcd.Client().Put(s.t.Context(), "/t/"+key, value)
	require.NoError(s.t, err)
}

// wipe deletes all that the policy store holds, and returns it.
func (s *setup) wipe() []*mvccpb.KeyValue {
	s.t.Helper()
	deleted, err := s.etcd.Client().Delete(s.t.Context(), "/t/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	require.NoError(s.t, err)
	return deleted.PrevKvs
}

// fill writes one key until etcd has no room for another revision of it. With values of 1 MiB, up
// to half of that room would be unused: each commit copies some of them.
func (s *setup) fill() {
	s.t.Helper()
	client, value := s.etcd.Client(), strings.Repeat("x", 64<<10)
	for err := error(nil); !errors.Is(err, rpctypes.ErrNoSpace); {
		_, err = client.Put(s.t.Context(), "/filler", value)
		require.True(s.t, err == nil || errors.Is(err, rpctypes.ErrNoSpace), "%v", err)
	}
}

func (s *setup) config(args ...string) {
	s.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.redis.Addr})
	defer func() { assert.NoError(s.t, client.Close()) }()
	require.NoError(s.t, client.ConfigSet(s.t.Context(), args[0], args[1]).Err())
}

// usedMemory is what Redis uses, in bytes.
func (s *setup) usedMemory() int64 {
	s.t.Helper()
	permits, err := throttle.OpenPermits(s.permitsURL)
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, permits.Close()) }()
	servers, err := permits.(*redispermits.Store).Servers(s.t.Context())
	require.NoError(s.t, err)
	return servers[0].UsedMemory
}

type finding struct {
	Severity, Check, Subject, Seen, Why, Mend string
}

// findings returns what doctor finds.
func (s *setup) findings() (status int, found []finding) {
	s.t.Helper()
	status, stdout, stderr := s.run("doctor", "-o", "json")
	var r struct{ Findings []finding }
	require.NoError(s.t, json.Unmarshal([]byte(stdout), &r), "%s", stderr)
	return status, r.Findings
}

// eventually waits until doctor finds exactly these checks: replicas publish once a second.
func (s *setup) eventually(checks ...string) (status int, found []finding) {
	s.t.Helper()
	var got []string
	for end := time.Now().Add(throttletest.Patience); ; {
		status, found = s.findings()
		got = nil
		for _, f := range found {
			got = append(got, f.Check)
		}
		if slices.Equal(got, checks) {
			return status, found
		}
		if time.Now().After(end) {
			s.t.Fatalf("doctor finds %v and not %v: %+v", got, checks, found)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// mend runs the command of a finding: of throttle-admin, redis-cli or a shell.
func (s *setup) mend(command string) {
	s.t.Helper()
	if _, args, ok := strings.Cut(command, "throttle-admin "); ok { // after a condition, perhaps
		s.admin(words(args)...)
		return
	}
	out, err := exec.CommandContext(s.t.Context(), "sh", "-c", command).CombinedOutput()
	require.NoError(s.t, err, "%s: %s", command, out)
}

// words are those of a shell command, some in single quotes.
func words(command string) (all []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// TestPlantedFaults plants one fault after the other in a set-up: doctor names it and nothing else,
// and after its command, or what it says, nothing.
func TestPlantedFaults(t *testing.T) {
	s := newSetup(t)
	s.eventually()
	extra := func(opts ...throttle.Option) *dispatch.Limiter {
		lim, err := throttle.Open(t.Context(), s.policiesURL, s.permitsURL, opts...)
		require.NoError(t, err)
		return lim
	}
	var other *dispatch.Limiter
	var stopReading func()
	var backup []*mvccpb.KeyValue
	closeOther := func(string) { require.NoError(t, other.Close()) }
	for _, planted := range []struct {
		name, severity, check string
		plant                 func()
		mend                  func(command string) // nil: the command of the finding
	}{
		{"an eviction policy", "fault", "redis-eviction", func() { s.config("maxmemory-policy", "allkeys-lru") }, nil},
		{"no append-only file", "hint", "redis-persistence", func() { s.config("appendonly", "no") }, nil},
		{"little memory", "warning", "redis-memory", func() {
			s.config("maxmemory", fmt.Sprint(s.usedMemory()*115/100))
		}, nil},
		{"an unreadable policy", "fault", "policy-unreadable", func() {
			s.put("config/policies/cluster", `{"schema":2,"messageRate":"5x"}`)
		}, nil},
		{"unreadable settings", "fault", "policy-unreadable", func() {
			s.put("config/quotaSettings/cluster", `{"schema":2,"zones":["a b"]}`)
		}, nil},
		{"a tie", "warning", "policy-tie", func() {
			s.put("config/policies/pattern:%5Ekafka:%2F%2Fpublic%2Fdefault%2For", `{"schema":2,"burst":5}`)
			s.put("config/policies/pattern:%5Ekafka:%2F%2Fpublic%2F.e.ault%2For", `{"schema":2,"burst":6}`)
		}, nil},
		{"reservations", "warning", "over-committed", func() {
			s.admin("set", orders, "reserved=900", "--subscription", "billing")
			s.admin("set", orders, "reserved=300", "--subscription", "audit")
		}, nil},
		{"a weight without effect", "hint", "no-effect", func() {
			s.admin("set", refunds, "sharing.mode=strict")
			s.admin("set", refunds, "weight=2", "--subscription", "billing")
		}, nil},
		{"a limit that is never reached", "hint", "never-reached", func() {
			s.admin("set", refunds, "messageRate=2000", "--subscription", "billing")
		}, nil},
		{"a mistyped pattern", "hint", "pattern-unused", func() {
			s.admin("set-msg-rate", "pattern:^kafka://public/defualt/", "5")
		}, nil},
		{"a temporary value that ends", "hint", "ends-soon", func() {
			s.admin("set", refunds, "burst=7", "--for", "9m")
		}, nil},
		{"no override for the cluster", "hint", "no-override", func() {
			s.admin("set-msg-rate", "public/standalon/default", "5")
		}, func(string) { s.admin("remove", "public/standalon/default") }},
		{"no marker", "fault", "policies-held store-unmarked", func() { // the replicas know another store
			_, err := s.etcd.Client().Delete(t.Context(), "/t/config/marker")
			require.NoError(t, err)
			s.put("config/policies/public%2Fdefault", `{"schema":2,"messageRate":"1000/s"}`)
		}, nil},
		{"a wiped etcd", "fault", "policies-held", func() { backup = s.wipe() }, func(command string) {
			for _, kv := range backup {
				if strings.HasPrefix(string(kv.Key), "/t/config/policies/") {
					s.put(strings.TrimPrefix(string(kv.Key), "/t/"), string(kv.Value))
				}
			}
			_, command, _ = strings.Cut(command, "and then: ")
			command, _, _ = strings.Cut(command, "; or")
			s.mend(command)
		}},
		{"a full etcd", "fault", "etcd-alarm etcd-space", func() { s.fill() }, nil},
		{"a damaged history", "warning", "history", func() { s.put("history/head", "{") }, func(string) {
			_, err := s.etcd.Client().Delete(t.Context(), "/t/history/head")
			require.NoError(t, err)
			s.mend("etcdctl --endpoints " + s.etcd.Endpoint + " del --prefix /t/history/")
		}},
		{"another version", "hint", "mixed-versions", func() {
			s.publish(dispatch.Stats{
				Replica: "old", Version: "v0.9.0", Revision: 1 << 60, Identity: s.limiters[0].Stats().Identity,
			}, 0)
		}, func(string) { s.unpublish() }},
		{"a replica with old policies", "warning", "old-policies", func() {
			s.publish(dispatch.Stats{
				Replica: "stuck", Version: dispatch.Version(), Revision: 1000, Identity: s.limiters[0].Stats().Identity,
				Subscriptions: []dispatch.SubscriptionStats{{Topic: orders, Subscription: "billing"}},
			}, 0)
		}, func(string) { s.unpublish() }},
		{"a clock that is ahead", "warning", "clock", func() {
			s.publish(dispatch.Stats{
				Replica: "ahead", Version: dispatch.Version(),
				Revision: 1 << 60, Identity: s.limiters[0].Stats().Identity,
			}, time.Hour)
		}, func(string) { s.unpublish() }},
		{"a replica without its permit store", "fault", "replica-permits", func() {
			s.publish(dispatch.Stats{
				Replica: "alone", Version: dispatch.Version(), Revision: 1 << 60,
				Identity: s.limiters[0].Stats().Identity, Permits: dispatch.PermitStoreStats{Unavailable: true},
			}, 0)
		}, func(string) { s.unpublish() }},
		{"messages read ahead", "warning", "read-ahead", func() {
			s.admin("set-msg-rate", refunds, "1")
			for _, sub := range s.refunds {
				sub.ReportReadAhead(100)
			}
		}, func(string) {
			for _, sub := range s.refunds {
				sub.ReportReadAhead(1)
			}
			s.admin("remove", refunds)
		}},
		{"unknown backlogs", "hint", "no-backlog", func() {
			s.report(false)
			ctx, cancel := context.WithCancel(t.Context())
			stopReading = cancel
			for _, sub := range s.orders { // one that reads nothing is idle, and not published
				go func() {
					for err := error(nil); err == nil; {
						_, err = sub.Acquire(ctx, 1)
					}
				}()
			}
			for _, sub := range s.orders {
				sub.ReportBacklog(-1)
			}
			for _, sub := range s.refunds {
				sub.ReportBacklog(1000)
			}
		}, func(string) { stopReading(); s.report(true) }},
		{"several topics in one reader", "warning", "held-up", func() {
			s.admin("set-msg-rate", "kafka://public/default/both", "1/h")
			other = extra(throttle.WithReplica("other"))
			sub, err := other.Subscription("kafka://public/default/both", "billing", dispatch.WithHoldsUp(orders))
			require.NoError(t, err)
			sub.ReportBacklog(1000)
			_, err = sub.Acquire(t.Context(), 1)
			require.NoError(t, err)
			go func() { _, _ = sub.Acquire(context.WithoutCancel(t.Context()), 1) }()
			go func() {
				for t.Context().Err() == nil {
					sub.ReportBacklog(1000)
					time.Sleep(100 * time.Millisecond)
				}
			}()
		}, func(command string) {
			closeOther(command)
			s.admin("remove", "kafka://public/default/both")
		}},
		{"a dead Redis", "fault", "store-unreachable", func() { s.redis.Freeze() }, func(string) { s.redis.Thaw() }},
		{"a wiped etcd that is to be empty", "fault", "policies-held", func() { s.wipe() }, func(command string) {
			_, command, _ = strings.Cut(command, "if it is to be empty: ")
			s.mend(command)
			for _, lim := range s.limiters {
				require.Eventually(t, func() bool { return lim.Stats().Policies == 0 }, throttletest.Patience, time.Millisecond)
			}
		}},
	} {
		if !t.Run(planted.name, func(t *testing.T) {
			s.t = t
			planted.plant()
			status, found := s.eventually(strings.Fields(planted.check)...)
			assert.Equal(t, planted.severity, found[0].Severity)
			assert.Equal(t, map[string]int{"hint": 0, "warning": 4, "fault": 5}[planted.severity], status)
			for _, text := range []string{found[0].Subject, found[0].Seen, found[0].Why, found[0].Mend} {
				assert.NotEmpty(t, text)
			}
			if planted.mend != nil {
				planted.mend(found[0].Mend)
			} else {
				s.mend(found[0].Mend)
			}
			for _, scope := range []string{"cluster", orders, refunds, "public/standalon/default"} {
				_, _, _ = s.run("reset", scope)
			}
			s.clean()
		}) {
			return
		}
	}
}

// clean removes what a fault has left, and waits until doctor finds nothing.
func (s *setup) clean() {
	s.t.Helper()
	s.eventually()
	for _, args := range [][]string{
		{"remove", refunds}, {"remove", refunds, "--subscription", "billing"}, {"remove", orders},
		{"remove", orders, "--subscription", "audit"}, {"set", orders, "reserved=", "--subscription", "billing"},
		{"remove", "pattern:^kafka://public/default/or"}, {"remove", "pattern:^kafka://public/.e.ault/or"},
	} {
		_, _, _ = s.run(args...) // fails if there is none
	}
	s.eventually()
}

// publish has a replica that is none of ours publish its status until unpublish. Its Time is ahead
// of the clock by so much.
func (s *setup) publish(status dispatch.Stats, ahead time.Duration) {
	s.t.Helper()
	permits, err := throttle.OpenPermits(s.permitsURL)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			status.Time = time.Now().Add(ahead).UnixMilli()
			text, _ := json.Marshal(status)
			_ = permits.Publish(ctx, s.cluster, status.Replica, text, 10*time.Second)
			time.Sleep(200 * time.Millisecond)
		}
		gone := context.WithoutCancel(ctx)
		assert.NoError(s.t, permits.Publish(gone, s.cluster, status.Replica, []byte("{}"), time.Millisecond))
		assert.NoError(s.t, permits.Close())
	}()
	s.unpublish = func() { cancel(); <-done }
}
