package cluster_test

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// texts are the status records that a thousand replicas publish, with a hundred of ten thousand
// topics each: ten replicas have the same.
func texts(second int64) (all [][]byte) {
	for r := range 1000 {
		s := dispatch.Stats{
			Replica: fmt.Sprintf("replica-%04d", r), Cluster: "standalone", Version: "v1.2.3", Time: 1000 * second,
			Identity: "0123456789abcdef", Epoch: 1795856312307, Revision: 1795856312,
		}
		for j := range 100 {
			topic := fmt.Sprintf("kafka://public/default/t%05d", (100*r+j)%10_000)
			sub := dispatch.SubscriptionStats{
				Topic: topic, Subscription: "billing", Owner: "tenant:public", Backlog: 123456, BehindSince: 1795856312307,
				Waiting: 3, Reason: dispatch.ReasonMessages, Waits: map[dispatch.Reason]int64{dispatch.ReasonMessages: 12345},
				Limits: []dispatch.LimitStats{{
					Key: "throttle:limit:{standalone/" + topic + "}:messages", Reason: dispatch.ReasonMessages, Rate: 1000,
					Share: 100.5, Use: 99.7, Held: 3, Granted: 1234567 + 100*second, Allocations: 12345 + second, Revision: 1795856312,
				}},
			}
			sub.WaitTimes = dispatch.Histogram{Count: 5420 + second, Sum: 123 * time.Second}
			sub.WaitTimes.Buckets = [len(dispatch.WaitBuckets) + 1]int64{1, 22, 333, 4444 + second, 555, 66}
			s.Subscriptions = append(s.Subscriptions, sub)
		}
		text, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		all = append(all, text)
	}
	return all
}

// BenchmarkUpdate is what a second costs with a thousand replicas: with nothing on view, and with
// as much on view as one read has. The time of the processor has that of the garbage collector.
func BenchmarkUpdate(b *testing.B) {
	for name, records := range map[string]int{"others": 84, "views": 168} {
		b.Run(name+"/throttle", func(b *testing.B) {
			st, now := cluster.NewState(), time.Unix(1_800_000_000, 0)
			add := func(texts [][]byte) {
				for _, text := range texts {
					r, err := cluster.Parse(text)
					if err != nil {
						b.Fatal(err)
					}
					st.Add(r, now)
				}
				st.Tick(now, nil)
			}
			rounds := [][][]byte{texts(1), texts(11), texts(21)}
			add(rounds[0])
			i, before := 0, cpuTime(b)
			for b.Loop() {
				now = now.Add(time.Second)
				round := rounds[1+i/1000%2]
				add(round[i%1000 : min(i%1000+records, 1000)])
				st.Overview(cluster.Query{Size: 50}, now)
				i += records
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "ms-of-cpu")
		})
	}
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
