package resolve

import "github.com/dispatchthrottle/throttle/policy"

// The reasons of callers that wait for a limit without a scope.
const (
	ReasonBusy  = "busy answers"
	ReasonQuota = "quota"
)

// Reason returns the reason of callers that wait for a limit of a scope of that kind, such as
// "subscription's byte rate".
func Reason(kind policy.Kind, bytes bool) string {
	r := "message rate"
	if bytes {
		r = "byte rate"
	}
	if kind != policy.TopicKind {
		r = kind.String() + "'s " + r
	}
	return r
}
