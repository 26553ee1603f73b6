// Package sizing computes what a fleet of replicas needs of one Redis, and what a Limiter needs of
// its process: counts by the formulas of the sharing modes, and from them bytes, memory and
// processor time by measured costs.
package sizing

import (
	"math"

	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
)

// A Fleet is replicas that all use the same limits. In each, a consumer of each subscription waits
// for one permit at a time of each limit, so that the limits are used in full.
type Fleet struct {
	Limits        int                `json:"limits"`
	Replicas      int                `json:"replicas"`      // that use each limit
	Subscriptions int                `json:"subscriptions"` // of each limit
	Rate          float64            `json:"rate"`          // of each limit, permits a second
	Round         float64            `json:"round"`         // seconds
	Sharing       policy.SharingMode `json:"sharing"`
}

// Needs are what a Fleet needs.
type Needs struct {
	Requests float64 `json:"requestsPerSecond"` // to the permit store, for permits
	Commands float64 `json:"commandsPerSecond"` // of Redis, with those in scripts

	RedisCPU    float64 `json:"redisCPU"`          // cores; Redis uses one
	RedisMemory float64 `json:"redisMemoryBytes"`  // beyond that of an empty server
	In          float64 `json:"inBytesPerSecond"`  // that Redis receives
	Out         float64 `json:"outBytesPerSecond"` // that Redis sends
	Connections int     `json:"connections"`       // at most, unless requests time out

	ReplicaCPU    float64 `json:"replicaCPU"`         // cores, of the Limiter in one replica
	ReplicaMemory float64 `json:"replicaMemoryBytes"` // its heap
}

const (
	// connections of one replica: one for requests, and one while status or requests of other
	// limits are on their way. A call that takes longer than joinedFor is overtaken by the next,
	// which needs one more: see joined in package redispermits.
	connections = 2
	joinedFor   = 0.005

	// A replica publishes its status once a second: see publishEvery in package dispatch.
	publishes = 1.0

	// published is how many subscriptions a status record has at most: maxPublished there.
	published = 1000

	// maxReserved is the default of sharing.maxReserved.
	maxReserved = 64

	// heartbeats of a member of a pool with the default sharing.poolTTL, 5 s, in a small and in a
	// large pool: see pool.Answer.Again.
	heartbeats     = 20 / 5.0
	rareHeartbeats = 6 / 5.0

	// visits are the most heartbeats or draws of all members of a limit: see pool.Spacing.
	visits = 250.0

	// tick is the shortest sleep of a Limiter's loop, in seconds, as in package engine.
	tick = 0.002
)

// consumers is how many consumers share each limit.
func (f Fleet) consumers() float64 { return float64(f.Replicas * f.Subscriptions) }

// perReplica is how many consumers a replica has.
func (f Fleet) perReplica() float64 { return float64(f.Limits * f.Subscriptions) }

// published is how many of them a status record has.
func (f Fleet) published() float64 { return min(published, f.perReplica()) }

// share is what one consumer gets, permits a second.
func (f Fleet) share() float64 { return f.Rate / f.consumers() }

// asked is how many requests one consumer makes a second.
func (f Fleet) asked() float64 {
	share := f.share()
	switch f.Sharing {
	case policy.Strict:
		// Each permit takes a request. A caller that finds all slots reserved asks again when the
		// next one is due: strict.Answered in package sharing.
		refused := max(0, f.consumers()-1-maxReserved)
		return share * (1 + refused)
	case policy.Split:
		return max(rareHeartbeats, min(heartbeats, visits/f.consumers()))
	case policy.Groups:
		// One in each round, and up to two more at places where the period's permits open later:
		// fitted to runs with 2.5 to 125 permits a second for each consumer.
		return min(1/f.Round+20*(1-math.Exp(-share/30)), visits/f.consumers())
	}
	// A batch is the share of one round, and at least one permit: schedule.Allocate.
	batch := share * f.line()
	if f.consumers() == 1 && batch >= 4 { // alone: half of it
		batch /= 2
	}
	return share / max(1, batch)
}

// line is how long the batches of all consumers of a limit last together, in seconds.
func (f Fleet) line() float64 {
	return max(f.Round, min(1/f.share(), schedule.Stretch(f.Rate)))
}

// Needs returns what the fleet needs.
func (f Fleet) Needs() Needs {
	limits, replicas := float64(f.Limits), float64(f.Replicas)
	lanes := f.perReplica()
	asked := lanes * f.asked() // by one replica
	requests := replicas * asked
	n := Needs{
		Requests: requests, Connections: (connections + int(lanes*callSeconds/joinedFor)) * f.Replicas,
		ReplicaMemory: replicaBytes + lanes*consumerBytes,
	}
	n.In, n.Out = requests*requestIn, requests*requestOut
	commands, keyBytes, pipelines := 4.0, 0.0, 1.0
	switch f.Sharing {
	case policy.Strict:
		commands = 6
	case policy.Split, policy.Groups:
		record := f.record()
		retried := f.Updates() * conflictSeconds
		commands = 6 + 3*retried
		n.In = requests * (recordIn + 2*record*(1+retried))
		n.Out = requests * (recordOut + record*(1+retried))
		keyBytes, pipelines = record, 2+retried
	default:
		// An epoch ends after four rounds or twice what is allocated ahead, with two commands.
		n.Commands = limits * 2 / max(4*f.Round, 2*max(f.Round, f.consumers()/f.Rate))
	}
	switch f.Sharing {
	case policy.Split:
		n.ReplicaMemory += heartbeatBytes
	case policy.Groups:
		n.ReplicaMemory += drawBytes
	}
	n.Commands += requests*commands + replicas*publishes*publishCommands
	n.In += replicas * publishes * (statusIn + f.published()*statusBytes)
	n.Out += replicas * publishes * statusOut
	n.RedisMemory = redisBytes + replicas*(connectionBytes+f.published()*statusStored) +
		limits*(limitBytes+keyBytes)

	// A loop wakes for the permits that are due, at most once a tick, and for answers. What falls
	// due together goes out in one pipeline.
	permits := lanes * f.share()
	released := permits / (1 + permits*tick)
	sent := released
	if f.Sharing == policy.Split {
		sent = asked
	}
	calls := sent * (1 - math.Exp(-asked/sent)) * pipelines
	if f.Sharing == policy.Strict {
		calls = max(calls, asked/(1+asked*tick))
	}
	n.RedisCPU = redisCPU + replicas*(calls*pipelineCPU+publishes*publishCPU) + requests*requestCPU
	steps := lanes * f.share() / (1 + f.share()*tick)
	wakes := max(released, calls)
	if f.Sharing == policy.Groups {
		wakes = released + pipelines*asked
	}
	n.ReplicaCPU = replicaCPU + wakes*wakeCPU + steps*stepCPU + permits*permitCPU
	return n
}

// Updates is how often the record of a limit is replaced, times a second; 0 in modes without
// records.
func (f Fleet) Updates() float64 {
	if f.Sharing == policy.Split || f.Sharing == policy.Groups {
		return f.consumers() * f.asked()
	}
	return 0
}

// record is the size of the record of a limit, in bytes.
func (f Fleet) record() float64 {
	if f.Sharing == policy.Groups {
		return groupsRecord + f.consumers()*groupsMember
	}
	return splitRecord + f.consumers()*splitMember
}
