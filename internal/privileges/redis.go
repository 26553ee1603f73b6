package privileges

import (
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/internal/role"
)

// A Server is what the rights of its users depend on.
type Server struct {
	Sharded  bool // a Redis Cluster
	Database int
}

// Redis returns the rules of ACL SETUSER for a user, which replace all that it has but its
// passwords. Each selector, in parentheses, is for one kind of keys: the commands of one selector
// do not reach the keys of another, even from a script.
func Redis(s Subject, server Server) []string {
	rules := []string{"on", "resetkeys", "resetchannels", "clearselectors", "-@all", "+time"}
	if server.Sharded {
		// With COMMAND, the client learns which keys a command has, and so which server it is for.
		rules = append(rules, "+cluster|slots", "+asking", "+command")
	}
	if server.Database != 0 {
		rules = append(rules, "+select")
	}
	selector := func(keys []string, commands string) {
		rules = append(rules, "("+strings.Join(keys, " ")+" "+commands+")")
	}
	usage, keeper := permits.UsageOf(s.Cluster), permits.RatekeeperOf(s.Cluster)
	var limits []string
	for _, begin := range permits.LimitKinds(s.Cluster) {
		limits = append(limits, begin+"*")
	}
	rates := []string{permits.RatesKey(s.Cluster), permits.RowsKey(permits.RatesKey(s.Cluster))}
	if s.is(role.Replica) {
		// The run of the server is part of a strict schedule, whose waiters are woken.
		rules = append(rules,
			"+info", "+publish", "+subscribe", "+ping", "&"+permits.RedisWake("*"))
		selector(patterns("~", limits), "+eval +evalsha +eval_ro +evalsha_ro +del +expire +get "+
			"+hdel +hgetall +hlen +hmget +hset +set")
		keys := append(records(s.Cluster, s.Replicas), records(usage, s.Replicas)...)
		selector(patterns("~", keys), "+eval +evalsha +eval_ro +evalsha_ro +zcount "+publishes)
	}
	if s.is(role.Ratekeeper) {
		selector(patterns("~", rates), "+eval +evalsha +eval_ro +evalsha_ro +del +get +hdel +hkeys "+
			"+hmget +hset +pexpire +set")
		selector(patterns("~", records(usage, "")), "+eval +evalsha +eval_ro +evalsha_ro +mget "+
			"+strlen +zcount +zrangebyscore "+publishes)
		selector(patterns("~", records(keeper, "")), "+eval +evalsha +zcount "+publishes)
	}
	if s.is(role.Admin, role.Viewer) {
		rules = append(rules, "+info")                                       // for doctor
		selector(patterns("%R~", limits[:1]), "+eval_ro +evalsha_ro +hmget") // schedules
		keys := slices.Concat(records(s.Cluster, ""), records(usage, ""), records(keeper, ""))
		selector(patterns("%R~", keys), "+eval_ro +evalsha_ro +mget +strlen +zrangebyscore")
	}
	if !s.is(role.Ratekeeper) { // which has these rights, and more
		selector(patterns("%R~", rates), "+eval_ro +evalsha_ro +get +hmget")
	}
	return rules
}

// publishes are commands that publish a record and trim the names of expired ones.
const publishes = "+del +pexpire +pttl +set +zadd +zremrangebyrank"

// records are the keys of the records that replicas publish under a name, and of their own names.
func records(cluster, replicas string) []string {
	return []string{permits.RedisStatus(cluster, replicas) + "*", permits.RedisReplicas(cluster)}
}

// patterns returns rules for keys.
func patterns(rule string, keys []string) []string {
	var rules []string
	for _, key := range keys {
		rules = append(rules, rule+key)
	}
	return rules
}
