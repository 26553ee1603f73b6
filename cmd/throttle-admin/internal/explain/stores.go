package explain

import "github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"

// maxStrict is how long requests may take of a replica that has a strict limit, in seconds: it gets
// one slot in each, and from half a second on, slots may be over before it hears of them.
const maxStrict = 0.25

// addStoreReasons describes what is wrong between the cluster's replicas and their stores.
func (x *explanation) addStoreReasons() {
	for _, held := range x.Held {
		x.say("%s", held)
	}
	for _, other := range x.Others {
		x.say("%s", other)
	}
	paced := false
	for _, l := range x.Limits {
		paced = paced || l.Strict
	}
	for _, r := range x.replicas {
		latency := r.Permits.Latency
		took := output.Seconds(latency)
		switch most := output.Number(1 / latency); {
		case !r.Permits.Slow:
		case paced && latency > maxStrict:
			x.say("Requests of %s to the permit store take %s, and a strict limit needs less than %s. It gets one "+
				"slot in each, %s/s at most.", r.Replica, took, output.Seconds(maxStrict), most)
		case paced:
			x.say("Requests of %s to the permit store take %s: it gets one slot of a strict limit in each, %s/s "+
				"at most.", r.Replica, took, most)
		default:
			x.say("Requests of %s to the permit store take %s: limits are shared in longer rounds.", r.Replica, took)
		}
		if n := r.Permits.Damaged; n > 0 {
			x.say("%s has found damage in what the permit store keeps of limits, and replaced it (%d times "+
				"since it started).", r.Replica, n)
		}
	}
}
