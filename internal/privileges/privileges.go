// Package privileges has the rights that users need in etcd and in Redis: what their roles do, and
// nothing else.
package privileges

import (
	"slices"

	"github.com/dispatchthrottle/throttle/internal/role"
)

// A Subject is one user of a store.
type Subject struct {
	Roles   []role.Role
	Cluster string

	// Replicas is how the names of the replicas begin whose records the user may write; "" = all.
	Replicas string
}

// is reports whether the user has one of the roles.
func (s Subject) is(roles ...role.Role) bool {
	return slices.ContainsFunc(s.Roles, func(r role.Role) bool { return slices.Contains(roles, r) })
}
