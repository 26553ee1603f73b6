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

// Published returns what Records does or, if that is not set, what the permit store has.
func (a *App) Published(ctx context.Context, permits dispatch.PermitStore) ([]dispatch.Stats, error) {
	if a.Records != nil {
		return a.Records(ctx)
	}
	return Published(ctx, permits, a.Cluster)
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

// KnownIDs returns the ids of the policies that replicas know, sorted; file for those of a file.
// Replicas whose policies have no id, those of a program for example, are in none. Epochs over a
// day ahead of the clock, which no replica follows, do not count; ahead are the replicas that state
// one.
func KnownIDs(replicas []dispatch.Stats) (ids []KnownID, ahead []string) {
	known := map[string]KnownID{}
	for _, r := range replicas {
		if r.Identity == "" {
			continue
		}
		if (configstore.Adoption{After: r.Epoch}).Check(time.Now()) != nil {
			r.Epoch, ahead = 0, append(ahead, r.Replica)
		}
		k := known[r.Identity]
		known[r.Identity] = KnownID{r.Identity, max(k.Epoch, r.Epoch), append(k.Replicas, r.Replica)}
	}
	return slices.SortedFunc(maps.Values(known), func(a, b KnownID) int {
		return strings.Compare(a.ID, b.ID)
	}), ahead
}

// Others returns the ids other than id that replicas know.
func Others(replicas []dispatch.Stats, id string) []KnownID {
	known, _ := KnownIDs(replicas)
	return slices.DeleteFunc(known, func(k KnownID) bool { return k.ID == id })
}

// A Held is what some replicas keep in place of what is in their policy store.
type Held struct {
	Revision int64    `json:"revision"` // of the policies that they keep
	Reason   string   `json:"reason"`
	Replicas []string `json:"replicas"`
}

// HeldBy returns what the replicas keep that do not follow the policy store, whether or not it has
// answered: one Held for each revision and reason, in the order of the first replicas.
func HeldBy(replicas []dispatch.Stats) (all []Held) {
	for _, r := range replicas {
		if r.PolicyError == "" {
			continue
		}
		i := slices.IndexFunc(all, func(h Held) bool { return h.Revision == r.Revision && h.Reason == r.PolicyError })
		if i < 0 {
			i, all = len(all), append(all, Held{Revision: r.Revision, Reason: r.PolicyError})
		}
		all[i].Replicas = append(all[i].Replicas, r.Replica)
	}
	return all
}

// String says who keeps what, and why.
func (h Held) String() string {
	return fmt.Sprintf("%s %s the policies of revision %d (%s): %s", Count(len(h.Replicas), "replica"),
		verb(len(h.Replicas), "keeps", "keep"), h.Revision, Names(h.Replicas), h.Reason)
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
