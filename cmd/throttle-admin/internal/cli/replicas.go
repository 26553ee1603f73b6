package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/dispatch"
)

// Published returns the status records of a cluster's replicas, sorted by name. Those that can be
// read are returned beside an error, too.
func Published(
	ctx context.Context, permits dispatch.PermitStore, cluster string,
) ([]dispatch.Stats, error) {
	texts, err := permits.Published(ctx, cluster)
	var all []dispatch.Stats
	for _, text := range texts {
		var s dispatch.Stats
		if e := json.Unmarshal(text, &s); e != nil {
			err = errors.Join(err, fmt.Errorf("a replica's status record: %w", e))
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b dispatch.Stats) int {
		return strings.Compare(a.Replica, b.Replica)
	})
	return all, err
}

// Replicas returns the status records of the cluster's running replicas, sorted by name, as the
// permit store has them; none if --permits names none that processes share.
func (a *App) Replicas(ctx context.Context) ([]dispatch.Stats, error) {
	permits, err := a.OpenPermits()
	if permits == nil || err != nil {
		return nil, err
	}
	replicas, err := Published(ctx, permits, a.Cluster)
	if err = errors.Join(err, permits.Close()); err != nil {
		err = Hint(fmt.Errorf("permit store: %w", err), "check --permits, and whether it is up")
	}
	return replicas, err
}

// A KnownID is the id of policies that running replicas know; see [configstore.Marker].
type KnownID struct {
	ID       string   `json:"id"`
	Epoch    int64    `json:"epoch"` // the latest of theirs that is not ahead of the clocks
	Replicas []string `json:"replicas"`
}

// KnownIDs returns the ids of the policies that replicas know, sorted. Those that have policies
// without an id, from a file for example, are in none.
func (a *App) KnownIDs(replicas []dispatch.Stats) []KnownID {
	known := map[string]KnownID{}
	for _, r := range replicas {
		if r.Identity == "" {
			continue
		}
		if err := (configstore.Adoption{After: r.Epoch}).Check(time.Now()); err != nil {
			a.Warn("the epoch that replica %s states is ignored: %v", r.Replica, err)
			r.Epoch = 0
		}
		k := known[r.Identity]
		known[r.Identity] = KnownID{r.Identity, max(k.Epoch, r.Epoch), append(k.Replicas, r.Replica)}
	}
	return slices.SortedFunc(maps.Values(known), func(a, b KnownID) int {
		return strings.Compare(a.ID, b.ID)
	})
}

// A Held is a replica that keeps its last policies.
type Held struct {
	Replica  string `json:"replica"`
	Revision int64  `json:"revision"` // of the policies that it keeps
	Reason   string `json:"reason"`
}

// HeldBy returns the replicas that do not follow the policy store, although it may have answered.
func HeldBy(replicas []dispatch.Stats) (held []Held) {
	for _, r := range replicas {
		if r.PolicyError != "" {
			held = append(held, Held{r.Replica, r.Revision, r.PolicyError})
		}
	}
	return held
}

// String says what the replica keeps, and why.
func (h Held) String() string {
	return fmt.Sprintf("%s keeps the policies of revision %d: %s", h.Replica, h.Revision, h.Reason)
}

// Others returns the ids other than id that replicas know.
func (a *App) Others(replicas []dispatch.Stats, id string) []KnownID {
	return slices.DeleteFunc(a.KnownIDs(replicas), func(k KnownID) bool { return k.ID == id })
}

// String says which replicas follow other policies.
func (k KnownID) String() string {
	return fmt.Sprintf("%s of the cluster %s policies of another store, %s: %s",
		Count(len(k.Replicas), "replica"), verb(len(k.Replicas), "follows", "follow"), Argument(k.ID),
		Names(k.Replicas))
}

// Count returns "1 replica", "2 replicas".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// maxNames is how many names a message lists.
const maxNames = 5

// Names returns names for a message: the first ones, if there are many.
func Names(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}
