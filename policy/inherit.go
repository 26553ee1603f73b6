package policy

// overlay replaces every field that over sets. It is written out because resolving spends its time
// here: calls through the table would move the result to the heap. A test compares the two.
func (p *Policy) overlay(over *Policy) {
	replace(&p.MessageRate, over.MessageRate)
	replace(&p.ByteRate, over.ByteRate)
	replace(&p.Burst, over.Burst)
	replace(&p.ByteBurst, over.ByteBurst)
	replace(&p.Round, over.Round)
	replace(&p.Mode, over.Mode)
	replace(&p.Paused, over.Paused)
	replace(&p.OnOutage, over.OnOutage)
	replace(&p.MaxInFlight, over.MaxInFlight)
	replace(&p.Weight, over.Weight)
	replace(&p.Reserved, over.Reserved)
	replace(&p.ReservedBytes, over.ReservedBytes)
	replace(&p.Aggregate, over.Aggregate)
	replace(&p.Priority, over.Priority)
	p.Sharing.overlay(&over.Sharing)
	p.Ramp.overlay(&over.Ramp)
	p.CaughtUp.overlay(&over.CaughtUp)
	p.Busy.overlay(&over.Busy)
}

func (s *Sharing) overlay(over *Sharing) {
	replace(&s.Mode, over.Mode)
	replace(&s.MaxReserved, over.MaxReserved)
	replace(&s.Wait, over.Wait)
	replace(&s.PermitExpiry, over.PermitExpiry)
	replace(&s.Replicas, over.Replicas)
	if over.Groups != nil {
		s.Groups = over.Groups
	}
	replace(&s.KeepBack, over.KeepBack)
	replace(&s.PoolTTL, over.PoolTTL)
}

func (r *Ramp) overlay(over *Ramp) {
	replace(&r.Mode, over.Mode)
	replace(&r.From, over.From)
	replace(&r.FromBytes, over.FromBytes)
	replace(&r.Over, over.Over)
	replace(&r.TTL, over.TTL)
}

func (c *CaughtUp) overlay(over *CaughtUp) {
	replace(&c.Throttle, over.Throttle)
	replace(&c.Backlog, over.Backlog)
}

func (b *Busy) overlay(over *Busy) {
	replace(&b.Mode, over.Mode)
	if over.Outcomes != nil {
		b.Outcomes = over.Outcomes
	}
	replace(&b.MinRate, over.MinRate)
	replace(&b.Tolerance, over.Tolerance)
	replace(&b.RecoverRate, over.RecoverRate)
	replace(&b.RecoverValue, over.RecoverValue)
}

// replace sets a field to a value, unless that is not set.
func replace[V comparable](field *V, value V) {
	var unset V
	if value != unset {
		*field = value
	}
}
