package sharing

import "math"

// A Demand is what the callers of a share want at this moment.
type Demand struct {
	Waiting  float64 // permits asked for by callers that this limit holds up, and those of a debt
	Callers  int     // that wait; for a strict limit, those that may have a message in flight
	Hindered int     // strict: those of them for which another limit has no permit now
	Anybody  bool    // a caller waits for the message, whichever limit holds it up
	Lacks    bool    // strict: another limit has no permit at all
	Try      bool    // strict: a caller wants a slot that is free now, or none
	Until    float64 // not strict: callers wait for a strict limit's slot, usable until then; 0 = none
}

// A taking is how fast callers take permits, and how many they were refused.
type taking struct {
	use       float64 // permits a second, averaged
	over      float64 // seconds that use is averaged over
	meter     meter   // of the same, for people
	sparse    float64 // what was last taken / the pause before it, if over two rounds; else +Inf
	usedAt    float64 // the last step at which something was taken
	wantedAt  float64 // the first step since then at which callers waited; 0 = they have not
	used      bool    // something was taken since the last request
	unserved  bool    // callers have come since something was taken
	leftAt    float64 // the first step at which these had given up; 0 = they have not
	taken     int64   // put - avail at the last step
	steppedAt float64 // the last step

	refusals  int64   // permits that were refused before this step
	refusedAt float64 // when a caller was last refused
	patience  float64 // how long a refused caller is thought to stay away, seconds
	asked     int64   // permits that a refused caller is thought to come back for
	heldUp    float64 // for how long since the last request callers waited for slots, seconds
}

// minOver is the shortest time that use is averaged over, seconds. Batches of a far permit store
// are longer; within one the rate of a greedy caller may vary.
const minOver = 0.3

func (k *taking) init(now float64) { k.steppedAt, k.sparse, k.over = now, math.Inf(1), minOver }

// observe brings the averages up to date. round is the limit's.
func (k *taking) observe(b *Bucket, round, now float64, d Demand) {
	if d.Waiting > 0 && b.unreleased() > 0 {
		k.heldUp += now - k.steppedAt
	}
	if dt := now - k.steppedAt; dt > 0 {
		taken := b.put - b.avail.Load()
		used := max(0, taken-k.taken)
		k.taken, k.steppedAt = taken, now
		k.meter.add(used, now)
		k.use += (float64(used)/dt - k.use) * (1 - math.Exp(-dt/k.over))
		if used > 0 {
			k.sparse = math.Inf(1)
			came := now
			if k.wantedAt > 0 {
				came = k.wantedAt // the rest of the pause is the permit store's
			}
			if pause := came - k.usedAt; pause > 2*round { // not a gap between random arrivals
				k.sparse = float64(used) / pause
			}
			k.usedAt, k.used, k.wantedAt = now, true, 0
		}
		if d.Waiting > 0 && k.wantedAt == 0 {
			k.wantedAt = now
		}
		k.unserved = k.unserved && used == 0
	}
	switch {
	case d.Anybody:
		k.unserved, k.leftAt = true, 0
	case !k.unserved:
		k.leftAt = 0
	case k.leftAt == 0:
		k.leftAt = now
	}
	k.refusals = 0
	if b.refused.Load() > 0 { // most steps have nothing to take
		k.refusals = b.refused.Swap(0) // what comes from now on is for the next step
	}
	if k.refusals > 0 {
		k.patience = min(60, max(round, now-k.refusedAt))
		if k.refusedAt == 0 {
			k.patience = 1
		}
		k.refusedAt, k.asked = now, k.refusals
	} else if k.asked > 0 && now-k.refusedAt > 2*k.patience {
		k.asked = 0
	}
}

// abandonedAt is when the permits are taken for abandoned: callers have given up, and none has come
// again in a round, nor is one that was refused expected; +Inf = that is not so.
func (k *taking) abandonedAt(round float64) float64 {
	switch {
	case k.leftAt == 0:
		return math.Inf(1)
	case k.asked > 0:
		return max(k.leftAt+round, k.refusedAt+2*k.patience)
	}
	return k.leftAt + round
}

// wants is the permits a second that this replica wants, as far as it shows.
func (k *taking) wants(b *Bucket, round float64, d Demand) float64 {
	// Just after a permit was taken, the average shows a slow caller as if it were a fast one.
	rate := 1.3*min(k.use, k.sparse) + d.Waiting/round
	if k.refusals > 0 {
		rate += float64(k.refusals) / k.patience
	}
	if d.Waiting > 0 && b.quick > 0 {
		rate = max(rate, 2*b.quick/round)
	}
	return rate
}

// pressure is the demand that the schedule is told. Callers that wait for slots to come take less
// than they want. So d is divided by the part of the time in which they did not wait, but by 0.8 at
// least, so that a short burst of a quiet subscription does not cost it its credit. Batches are
// sized by d itself, so that a replica which is taken for greedy by mistake requests no slots that
// it then wastes.
func (k *taking) pressure(sinceSent, d float64) float64 {
	if sinceSent > 0 {
		d /= max(0.8, 1-k.heldUp/sinceSent)
	}
	return d
}
