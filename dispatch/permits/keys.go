package permits

import (
	"net/url"
	"strings"

	"github.com/dispatchthrottle/throttle/policy"
)

// All keys of all permit stores are made in this file.
//
// A key begins with "throttle:" and its kind, so that the access rules of Redis can tell kinds
// apart. A hash tag follows: the cluster and what the limit belongs to, a topic as a rule. All
// keys with the same tag are on one shard of a Redis Cluster.
const (
	limitKind   = "throttle:limit:"   // schedules
	poolKind    = "throttle:pool:"    // records of limits with sharing.mode split
	groupsKind  = "throttle:groups:"  // records of limits with sharing.mode groups
	ratesKind   = "throttle:rates:"   // of quotas
	statusKind  = "throttle:status:"  // records of replicas
	replicaKind = "throttle:replica:" // on Redis: the names of the replicas, by record's expiry
	wakeKind    = "throttle:wake:"    // on Redis: channels
)

// LimitKey returns the key of a scope's limit: of a topic, of one of its subscriptions, or an
// aggregate limit.
func LimitKey(cluster string, scope policy.Scope, bytes bool) string {
	unit := ":messages"
	if bytes {
		unit = ":bytes"
	}
	if scope.Kind == policy.SubscriptionKind {
		return limitKind + tag(cluster, scope.Topic.String()) + unit + ":" + scope.Subscription
	}
	return limitKind + tag(cluster, scope.String()) + unit
}

// LimitScope returns the scope that a key from LimitKey is of, as a text, unless that is a
// subscription.
func LimitScope(cluster, key string) string {
	scope := strings.TrimPrefix(key, limitKind+"{"+cluster+"/")
	if end := strings.LastIndex(scope, "}:"); end >= 0 {
		scope = scope[:end]
	}
	return scope
}

// BusyKey returns the key of the limit by which a subscription slows down for the systems that its
// handlers call.
func BusyKey(cluster string, topic policy.Topic, subscription string) string {
	return limitKind + tag(cluster, topic.String()) + ":busy:" + subscription
}

// QuotaKey returns the key of a throttling id's quota.
func QuotaKey(cluster string, id policy.Scope) string {
	return limitKind + tag(cluster, id.String()) + ":quota"
}

// PoolKey returns the key of the record that the heartbeats of a limit replace, given the limit's
// key.
func PoolKey(limit string) string { return poolKind + strings.TrimPrefix(limit, limitKind) }

// GroupsKey returns the key of the record that the draws of a limit replace, given the limit's
// key.
func GroupsKey(limit string) string { return groupsKind + strings.TrimPrefix(limit, limitKind) }

// RatesKey returns the key of the rates of all quotas of a cluster, which a ratekeeper writes.
func RatesKey(cluster string) string { return ratesKind + "{" + cluster + "}" }

// LimitKinds returns how the keys of a cluster's limits begin: those of schedules, of the records
// of pools, and of those of worker groups.
func LimitKinds(cluster string) []string {
	var kinds []string
	for _, kind := range []string{limitKind, poolKind, groupsKind} {
		kinds = append(kinds, kind+"{"+cluster+"/")
	}
	return kinds
}

// RowsKey returns the key of the rows that belong to the value under key.
func RowsKey(key string) string { return key + ":rows" }

// UsageOf returns the name under which replicas publish their usage of quotas, instead of the
// cluster's name.
func UsageOf(cluster string) string { return cluster + "/usage" }

// RatekeeperOf returns the name under which ratekeepers publish their status, instead of the
// cluster's name.
func RatekeeperOf(cluster string) string { return cluster + "/ratekeeper" }

// RedisStatus returns the Redis key of a replica's status record; a replica of "" is the prefix of
// all.
func RedisStatus(cluster, replica string) string {
	return statusKind + "{" + cluster + "}:" + replica
}

// RedisReplicas returns the Redis key of the sorted set of the replicas with a status record.
func RedisReplicas(cluster string) string { return replicaKind + "{" + cluster + "}" }

// RedisWake returns the Redis channel of a process, on which allocate.lua publishes the waiters
// whose turn has come.
func RedisWake(process string) string { return wakeKind + process }

// EtcdKey returns the etcd key for a key of this file.
func EtcdKey(prefix, key string) string { return prefix + "/permits/" + url.PathEscape(key) }

// EtcdRow is the etcd key of a row that belongs to the value under key; a name of "" is the prefix
// of all.
func EtcdRow(prefix, key, name string) string {
	return EtcdKey(prefix, RowsKey(key)) + "/" + url.PathEscape(name)
}

// EtcdStatus is the prefix of the status records of a cluster's replicas in etcd; a replica of ""
// is the prefix of all.
func EtcdStatus(prefix, cluster, replica string) string {
	return prefix + "/status/" + url.PathEscape(cluster) + "/" + url.PathEscape(replica)
}

// EtcdClock returns the key of the clock that all processes of a prefix share.
func EtcdClock(prefix string) string { return prefix + "/clock" }

func tag(cluster, what string) string { return "{" + cluster + "/" + what + "}" }
