package privileges

import (
	"maps"
	"slices"
	"strings"

	configetcd "github.com/dispatchthrottle/throttle/configstore/etcd"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/internal/role"
)

// A Permission is one that a role of etcd grants.
type Permission struct {
	Type   string `json:"type"` // read, write or readwrite
	Key    string `json:"key"`
	Prefix bool   `json:"prefix,omitempty"` // for all keys that begin with Key
}

// Permissions are an etcd role's, by key.
type Permissions map[string]access

type access struct{ read, write, prefix bool }

func (p Permissions) add(what access, keys ...string) {
	for _, key := range keys {
		has := p[key]
		p[key] = access{has.read || what.read, has.write || what.write, what.prefix}
	}
}

var (
	reads      = access{read: true, prefix: true}
	writes     = access{write: true, prefix: true}
	both       = access{read: true, write: true, prefix: true}
	readsOne   = access{read: true}
	changesOne = access{read: true, write: true}
)

// Policies adds what a user needs in the etcd of the policy store.
func (p Permissions) Policies(s Subject, keys configetcd.Keys) {
	election := keys.Elections + s.Cluster + "/"
	p.add(reads, keys.Config)
	if s.is(role.Admin, role.Viewer) {
		p.add(reads, keys.History, election)
	}
	if s.is(role.Admin) {
		p.add(both, keys.Config, keys.History)
	}
	if s.is(role.Ratekeeper) {
		p.add(both, election)
	}
}

// Permits adds what a user needs in the etcd of the permit store with a prefix.
func (p Permissions) Permits(s Subject, prefix string) {
	var limits []string
	for _, kind := range permits.LimitKinds(s.Cluster) {
		limits = append(limits, permits.EtcdKey(prefix, kind))
	}
	rates := permits.EtcdKey(prefix, permits.RatesKey(s.Cluster))
	clock := permits.EtcdClock(prefix)
	status := func(cluster, replica string) string {
		return permits.EtcdStatus(prefix, cluster, replica)
	}
	usage, keeper := permits.UsageOf(s.Cluster), permits.RatekeeperOf(s.Cluster)
	p.add(readsOne, clock)
	p.add(reads, rates) // and its rows
	if s.is(role.Admin, role.Viewer) {
		p.add(reads, limits[0]) // schedules
		p.add(reads, status(s.Cluster, ""), status(usage, ""), status(keeper, ""))
	}
	if s.is(role.Replica) {
		p.add(changesOne, clock)
		p.add(both, limits...)
		p.add(reads, status(s.Cluster, "")) // to count the replicas
		p.add(writes, status(s.Cluster, s.Replicas), status(usage, s.Replicas))
	}
	if s.is(role.Ratekeeper) {
		p.add(changesOne, clock)
		p.add(both, rates)
		p.add(both, status(usage, ""))
		p.add(writes, status(keeper, ""))
	}
}

// List returns the permissions, sorted by key.
func (p Permissions) List() []Permission {
	var list []Permission
	for _, key := range slices.Sorted(maps.Keys(p)) {
		var kind strings.Builder
		if p[key].read {
			kind.WriteString("read")
		}
		if p[key].write {
			kind.WriteString("write")
		}
		list = append(list, Permission{kind.String(), key, p[key].prefix})
	}
	return list
}
