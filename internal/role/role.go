// Package role has the roles of users of the stores, and the error that a user gets for a
// right that it lacks.
package role

import (
	"fmt"
	"strings"
)

// A Role is what a user of the stores does.
type Role string

// The roles.
const (
	Admin      Role = "admin"      // changes policies
	Replica    Role = "replica"    // a process with a Limiter
	Ratekeeper Role = "ratekeeper" // a candidate for the ratekeeper
	Viewer     Role = "viewer"     // reads all, and changes nothing
)

// Roles are all roles.
var Roles = []Role{Admin, Replica, Ratekeeper, Viewer}

// The stores, as throttle-admin rights names them.
const (
	Etcd  = "etcd"
	Redis = "redis"
)

// A DeniedError is the error of a store that has refused its user.
type DeniedError struct {
	error
	Store string // Etcd or Redis
}

func (e *DeniedError) Unwrap() error { return e.error }

// Denied adds to the error of a store that has refused its user which command grants the right. A
// role of "" stands for the one that the program has. It returns a *DeniedError.
func Denied(err error, store string, role Role) error {
	if role == "" {
		role = "ROLE"
	}
	return &DeniedError{fmt.Errorf("%w: the user lacks this right; "+
		"the commands that grant it: throttle-admin rights %s --role %s", err, store, role), store}
}

// DeniedByEtcd reports whether etcd has refused its user. The error of a watch has only the text.
func DeniedByEtcd(err error) bool {
	return err != nil && strings.Contains(err.Error(), "etcdserver: permission denied")
}
