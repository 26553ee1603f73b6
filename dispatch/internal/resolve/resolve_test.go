package resolve_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

var update = flag.Bool("update", false, "rewrite the limits in testdata")

// TestLimits resolves the policies of testdata/limits.txt for the subscription billing of
// kafka://acme/shop/orders. A case has a comment, its input in lines with a leading ">", and what
// it resolves to.
func TestLimits(t *testing.T) {
	const file = "testdata/limits.txt"
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var all []string
	for text := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		lines := strings.Split(text, "\n")
		name := strings.TrimPrefix(lines[0], "# ")
		var in, want []string
		for _, line := range lines[1:] {
			if input, ok := strings.CutPrefix(line, "> "); ok {
				in = append(in, input)
			} else {
				want = append(want, line)
			}
		}
		got := limits(t, in)
		if !*update {
			assert.Equal(t, want, got, name)
		}
		for i := range in {
			in[i] = "> " + in[i]
		}
		all = append(all, strings.Join(slices.Concat([]string{"# " + name}, in, got), "\n"))
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(all, "\n\n")+"\n"), 0o644))
	}
}

// limits resolves the input of a case: policies in lines as throttletest.SetOf reads them, and
// lines of
//
//	owner KIND:NAME             the owner of the lane's messages
//	reported [KIND:NAME ...]    an outcome was reported; the owners of the subscription's messages
//	rates [ID=RATE ...] [timely]
func limits(t *testing.T, lines []string) (out []string) {
	t.Helper()
	lane := lane(resolve.Owner{})
	terms := resolve.Terms{
		Cluster: "c", WorkerGroup: "eu",
		Policies: policy.Snapshot{Identity: "store", Revision: 7},
	}
	var reports resolve.Reports
	var policies []string
	for _, line := range lines {
		words := strings.Fields(line)
		switch words[0] {
		case "owner":
			lane.Owner = owner(words[1:])
		case "reported":
			reports.Any = true
			for _, w := range words[1:] {
				reports.Owners = append(reports.Owners, owner([]string{w}))
			}
		case "rates":
			terms.Rates.Rates, terms.Rates.Time = map[quota.ID]quota.Rate{}, 100
			terms.RatesAt, terms.RatesTimely = 100, slices.Contains(words, "timely")
			for _, w := range words[1:] {
				if id, rate, ok := strings.Cut(w, "="); ok {
					n, err := strconv.ParseFloat(rate, 64)
					require.NoError(t, err)
					terms.Rates.Rates[quota.ID(id)] = quota.Rate{Rate: n, Average: quota.AssumedCost}
				}
			}
		default:
			policies = append(policies, line)
		}
	}
	terms.Policies.Set = throttletest.SetOf(t, strings.Join(policies, "\n"))
	return describe(resolve.Resolve(terms, lane, policy.Matches{}, reports))
}

func lane(o resolve.Owner) resolve.LaneID {
	topic := policy.Topic{Scheme: "kafka", Tenant: "acme", Namespace: "shop", Name: "orders"}
	return resolve.LaneID{Topic: topic, Subscription: "billing", Owner: o}
}

func owner(words []string) (o resolve.Owner) {
	for _, w := range words {
		kind, name, _ := strings.Cut(w, ":")
		switch kind {
		case "tenant":
			o.TenantGroup = name
		case "tag":
			o.Tag = name
		}
	}
	return o
}

// describe lists what was resolved, without fields that have their defaults.
func describe(s resolve.Resolved) (out []string) {
	for _, l := range s.Messages {
		out = append(out, "messages "+limit(l))
	}
	for _, l := range s.Bytes {
		out = append(out, "bytes    "+limit(l))
	}
	var all words
	all.add(s.Paused, "paused")
	all.add(s.MaxInFlight > 0, "%d in flight", s.MaxInFlight)
	all.add(s.MaxInFlight > 0 && s.ShadowInFlight, "or more, which are counted")
	all.add(s.CaughtUpBacklog != 100, "caught up at %d", s.CaughtUpBacklog)
	all.add(s.ThrottleCaughtUp, "throttled when caught up")
	if s.Quota != nil {
		all.add(true, "quota of %s", *s.Quota)
	}
	for _, tie := range s.Ties {
		all.add(true, "%v ties with %v", tie.A, tie.B)
	}
	if s.Outcomes != 1<<resolve.OK|1<<resolve.Busy {
		all.add(true, "outcomes %05b", s.Outcomes)
	}
	if len(all) > 0 {
		out = append(out, strings.Join(all, ", "))
	}
	return out
}

func limit(l resolve.Limit) string {
	var w words
	key := strings.TrimPrefix(l.Key, "throttle:limit:")
	w.add(true, "%s (%s): %s %g/s", key, l.Reason, l.Mode, l.Rate)
	w.add(l.Shadow, "shadow")
	w.add(l.Burst != 0, "burst %g", l.Burst)
	w.add(l.Round != 0.1, "round %gs", l.Round)
	w.add(l.Ramp != schedule.Ramp{}, "ramp %v", l.Ramp)
	w.add(l.MaxReserved != 0, "%g ahead", l.MaxReserved)
	w.add(l.Queue, "queue")
	w.add(l.Expiry != 0, "expiry %gs", l.Expiry)
	w.add(l.Split != resolve.Split{}, "pool %v", l.Split)
	w.add(l.Groups.Own != "" || l.Groups.Terms.Names != nil, "groups %v", l.Groups)
	w.add(l.Rule.Mode != busy.None, "rule %v", l.Rule)
	w.add(l.Sharer != "billing", "for %s", l.Sharer)
	w.add(l.Weight != 1, "weight %g", l.Weight)
	w.add(l.Reserved != 0, "reserved %g/s", l.Reserved)
	w.add(l.OnOutage != policy.OutageShare, "onOutage %s", l.OnOutage)
	w.add(l.Revision != schedule.Revision{Number: 7}, "revision %v", l.Revision)
	w.add(l.ExemptsCaughtUp, "exempts")
	return strings.Join(w, ", ")
}

type words []string

func (w *words) add(yes bool, format string, args ...any) {
	if yes {
		*w = append(*w, fmt.Sprintf(format, args...))
	}
}

// TestRequote: the limit of a quota has the rate that is known now, and is otherwise unchanged.
func TestRequote(t *testing.T) {
	set := throttletest.SetOf(t, "quota tenant:acme total=163840") // 10 messages a second
	terms := resolve.Terms{
		Cluster: "c", RatesAt: 2000,
		Policies: policy.Snapshot{Set: set, Identity: "store", Revision: 7},
	}
	was := resolve.Resolve(terms, lane(resolve.Owner{}), policy.Matches{}, resolve.Reports{}).Messages[0]
	assert.Equal(t, 10.0, was.Rate, "the total")
	terms.RatesTimely = true
	terms.Rates = quota.Rates{Time: 2000, Rates: map[quota.ID]quota.Rate{"tenant:acme": {Rate: 3}}}
	now := resolve.Requote(terms, lane(resolve.Owner{}), was)
	assert.Equal(t, 3.0, now.Rate)
	read := schedule.Revision{Number: 2_000_000}
	assert.Equal(t, read, now.Revision)
	now.Rate, now.Revision = was.Rate, was.Revision
	assert.Equal(t, was, now)
}

func TestOwner(t *testing.T) {
	set := throttletest.SetOf(t, "quota tag:bulk total=1")
	for _, c := range []struct {
		owner    resolve.Owner
		id, text string
	}{
		{resolve.Owner{}, "tenant:acme", ""},
		{resolve.Owner{Tag: "bulk"}, "tag:bulk", "tag:bulk"},
		{resolve.Owner{Tag: "free"}, "tenant:acme", "tag:free"}, // no quota
		{resolve.Owner{TenantGroup: "eu", Tag: "bulk"}, "tenant:eu", "tenant:eu"},
	} {
		assert.Equal(t, c.id, c.owner.ID(lane(c.owner).Topic, set).String(), "%+v", c.owner)
		assert.Equal(t, c.text, c.owner.String())
		assert.NoError(t, c.owner.Validate())
	}
	err := resolve.Owner{TenantGroup: "a/b", Tag: "c d"}.Validate()
	assert.ErrorContains(t, err, "a/b")
	assert.ErrorContains(t, err, "c d")
}
