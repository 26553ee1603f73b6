package sharing

import (
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/policy"
)

// New returns a share of a limit that begins with nothing.
func New(env *Env, limit resolve.Limit, now float64) *Share {
	if env.turns == nil {
		env.turns, env.keeping = map[string]*turns{}, map[string][]*fair{}
	}
	s := &Share{env: env, Limit: limit, Reason: limit.Reason}
	s.Bucket.init()
	s.taking.init(now)
	switch limit.Mode {
	case policy.Strict:
		s.Mode = newStrict(s)
	case policy.Split:
		s.Mode = newSplit(s)
	case policy.Groups:
		s.Mode = newGroups(s)
	default:
		s.Mode = newFair(s)
	}
	return s
}
