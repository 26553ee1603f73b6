package adaptertest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// A behaviour is what an adapter of every broker does.
type behaviour struct {
	name string
	test func(*world)
}

// Run requires all behaviours of a client's adapter but those that are named, each with a Broker
// and a Limiter of its own. It appends a line for each to the file that THROTTLE_BEHAVIOURS names.
func Run(t *testing.T, client string, open func(testing.TB) Broker, but ...string) {
	for _, is := range behaviours {
		if slices.Contains(but, is.name) {
			continue
		}
		t.Run(is.name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { note(t, client, is.name) })
			is.test(&world{TB: t, Broker: open(t), lim: throttletest.Open(t, policy.Policy{})})
		})
	}
}

// note appends how a test has ended.
func note(t *testing.T, client, behaviour string) {
	name := os.Getenv("THROTTLE_BEHAVIOURS")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = fmt.Fprintf(f, "%s\t%s\t%v\n", client, behaviour, !t.Failed())
	require.NoError(t, err)
}

// Names returns the names of all behaviours, in order.
func Names() (names []string) {
	for _, is := range behaviours {
		names = append(names, is.name)
	}
	return names
}

// The behaviours, in the order of the table in docs/reference/adapters.md.
var behaviours = []behaviour{
	{"order and pace", orderAndPace},
	{"exact bytes", exactBytes},
	{"nothing is lost as members come and go", comeAndGo},
	{"a waiting message goes to another member", rebalance},
	{"a call that ends keeps its message", cancels},
	{"deadlines that end at any moment", deadlines},
	{"close ends a wait", closes},
	{"the limiter closes first", limiterClosesFirst},
	{"a seek drops the waiting message", seeks},
	{"a tag has a quota of its own", tags},
	{"maxInFlight", inFlight},
	{"caught up is not throttled", caughtUp},
	{"an unknown backlog is throttled", unknownBacklog},
	{"a limit is set and lifted", setAndLifted},
	{"a paused topic", pauses},
	{"the permit store is unavailable", storeUnavailable},
	{"Skip gives permits back", skips},
	{"two hundred goroutines share a consumer", manyGoroutines},
}
