package policy

import (
	"errors"
	"fmt"
)

// A HeldError is why the policies of a store are not put in force although the store has answered:
// it may be the wrong one, or have lost them. The last policies stay in force.
type HeldError struct {
	Fault Fault
	Text  string // what was found, and what to do
}

func (e *HeldError) Error() string { return e.Text }

// A Fault is a reason for which a replica does not follow its policy store. Two errors of one Fault
// are about one condition, which is logged once.
type Fault string

// The faults. All but FaultUnavailable are those of a HeldError.
const (
	FaultUnavailable Fault = "the policy store is unavailable"
	FaultNotAdopted  Fault = "the policy store is not adopted"
	FaultLost        Fault = "the policy store has lost its policies"
	FaultOther       Fault = "the policy store is another one"
	FaultOlder       Fault = "the policy store is older than it was"
	FaultRevision    Fault = "the policy store has an invalid revision"
)

// FaultOf returns the fault that an error of a policy store is about: "" if err is nil, that of a
// HeldError, else FaultUnavailable.
func FaultOf(err error) Fault {
	if err == nil {
		return ""
	}
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held.Fault
	}
	return FaultUnavailable
}

func held(fault Fault, format string, args ...any) error {
	return &HeldError{fault, fmt.Sprintf(format, args...)}
}
