package numaflowthrottle

import (
	"slices"

	"github.com/numaproj/numaflow-go/pkg/mapper"
)

// WithChargedDrops keeps the permit of a message all of whose results are dropped. The default is
// that it goes back, for another message. It is for maps and source transformers.
func WithChargedDrops() Option { return func(o *options) { o.chargeDrops = true } }

// A result of the user's code is dropped by a tag, which is the same in all packages of the SDK.
type result interface{ Tags() []string }

// dropped reports whether all results are dropped, or there are none.
func dropped[R result](results []R) bool {
	return !slices.ContainsFunc(results, func(r R) bool {
		return !slices.Contains(r.Tags(), mapper.DROP)
	})
}
