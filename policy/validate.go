package policy

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of fields.
const (
	MinRound     = 10 * time.Millisecond
	MaxRound     = 10 * time.Second
	MaxBurst     = MaxMessageRate * 3600 // messages: an hour at the highest rate
	MaxByteBurst = MaxByteRate * 3600    // bytes: likewise
	MaxBacklog   = 1_000_000_000_000_000 // messages
	MaxPriority  = 1_000_000             // either side of 0
)

// Validate returns every fault of the scope and of the policy for it, a *[FieldError] each.
// A policy that sets nothing is valid.
func (p Policy) Validate(scope Scope) error {
	var errs []error
	fault := func(field string, value any, reason string) {
		errs = append(errs, &FieldError{field, fmt.Sprint(value), reason})
	}
	bounded := func(field string, v *int64, most int64) {
		if v != nil && (*v < 0 || *v > most) {
			fault(field, *v, fmt.Sprintf("is outside 0..%d", most))
		}
	}
	errs = append(errs, scope.Validate())
	if err := p.MessageRate.check(MaxMessageRate); err != nil {
		fault("messageRate", p.MessageRate, err.Error())
	}
	if err := p.ByteRate.check(MaxByteRate); err != nil {
		fault("byteRate", p.ByteRate, err.Error())
	}
	bounded("burst", p.Burst, MaxBurst)
	bounded("byteBurst", p.ByteBurst, MaxByteBurst)
	bounded("caughtUpBacklog", p.CaughtUpBacklog, MaxBacklog)
	if r := time.Duration(p.Round); r != 0 && (r < MinRound || r > MaxRound) {
		fault("round", p.Round, fmt.Sprintf("is outside %s..%s", MinRound, MaxRound))
	}
	if p.Mode != "" && p.Mode != Enforce && p.Mode != Shadow {
		fault("mode", p.Mode, "is unknown: use enforce or shadow")
	}
	if l := p.OnLedgerLoss; l != "" && l != LossShare && l != LossStop && l != LossOpen {
		fault("onLedgerLoss", l, "is unknown: use share, stop or open")
	}
	if p.Priority != nil {
		if scope.Kind != PatternKind {
			fault("priority", *p.Priority, "orders patterns only: leave it out for a "+scope.Kind.String())
		} else if *p.Priority < -MaxPriority || *p.Priority > MaxPriority {
			fault("priority", *p.Priority, fmt.Sprintf("is outside %d..%d", -MaxPriority, MaxPriority))
		}
	}
	return errors.Join(errs...)
}
