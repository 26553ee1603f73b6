package overcommit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

func TestQuotas(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	capacity := func(n int64) policy.Settings { return policy.QuotaSettings{Capacity: &n} }
	reserved := policy.Quota{Reserved: new(int64(8)), Total: new(int64(16))}
	lasting := func(scope policy.Scope, p policy.Settings) policy.Entry {
		return policy.Entry{Scope: scope, Settings: p}
	}
	until := func(secs int, scope policy.Scope, field string, p policy.Settings) policy.Entry {
		return policy.Entry{
			Scope: scope, Settings: p, Temporary: true, Field: field,
			Expires: now.Add(time.Duration(secs) * time.Second),
		}
	}
	cluster, a, b := policy.ClusterScope(), policy.TagScope("a"), policy.TenantScope("b")
	none := policy.Quota{Total: new(int64(0))}
	for _, c := range []struct {
		name    string
		entries []policy.Entry
		want    *Excess
	}{
		{"no capacity", []policy.Entry{lasting(a, reserved)}, nil},
		{
			"as much",
			[]policy.Entry{lasting(cluster, capacity(16)), lasting(a, reserved), lasting(b, reserved)}, nil,
		},
		{
			"now",
			[]policy.Entry{lasting(cluster, capacity(15)), lasting(a, reserved), lasting(b, reserved)},
			&Excess{Reserved: 16, Capacity: 15},
		},
		{
			"a capacity ends",
			[]policy.Entry{
				lasting(cluster, capacity(7)), until(10, cluster, "capacity", capacity(20)),
				lasting(a, reserved),
			},
			&Excess{now.Add(10 * time.Second), 8, 7},
		},
		{
			"it has ended",
			[]policy.Entry{
				lasting(cluster, capacity(7)), until(0, cluster, "capacity", capacity(20)),
				lasting(a, reserved),
			},
			&Excess{Reserved: 8, Capacity: 7},
		},
		{
			"none comes back",
			[]policy.Entry{until(10, cluster, "capacity", capacity(20)), lasting(a, reserved)}, nil,
		},
		{
			"a total ends",
			[]policy.Entry{
				lasting(cluster, capacity(15)), lasting(a, reserved), until(20, a, "total", none),
				lasting(b, reserved),
			},
			&Excess{now.Add(20 * time.Second), 16, 15},
		},
		{"the second end", []policy.Entry{
			lasting(cluster, capacity(15)), lasting(a, reserved), until(10, a, "total", none),
			lasting(b, reserved), until(20, b, "total", none),
		}, &Excess{now.Add(20 * time.Second), 16, 15}},
	} {
		assert.Equal(t, c.want, Quotas(c.entries, now), c.name)
	}
}
