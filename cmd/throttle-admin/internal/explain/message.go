package explain

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// messageFlags say which message explain is asked about.
type messageFlags struct {
	asked bool
	tag   string
	bytes int64
}

func (f *messageFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.asked, "message", false,
		"show what would happen to a message of the topic now: its limits, and how long it would wait")
	cmd.Flags().StringVar(&f.tag, "tag", "", "with --message: the tag of its subscription, whose quota applies")
	cmd.Flags().Int64Var(&f.bytes, "bytes", 1024, "with --message: its size; messages that wait are taken to be as large")
}

// check returns the faults of the flags.
func (f *messageFlags) check(cmd *cobra.Command, scope policy.Scope) error {
	var errs []error
	for _, name := range []string{"tag", "bytes"} {
		if cmd.Flags().Changed(name) && !f.asked {
			errs = append(errs, fmt.Errorf("--%s: want it with --message", name))
		}
	}
	if f.bytes < 0 {
		errs = append(errs, cli.ArgError("bytes", fmt.Sprint(f.bytes), "is negative: want 0 or more"))
	}
	if cmd.Flags().Changed("tag") {
		errs = append(errs, policy.TagScope(f.tag).Validate())
	}
	if f.asked && scope.Kind != policy.TopicKind && scope.Kind != policy.SubscriptionKind {
		errs = append(errs, errors.New("--message: want the URL of its topic"))
	}
	return errors.Join(errs...)
}

// A messageReport is what would happen to a message now.
type messageReport struct {
	Topic        string         `json:"topic"`
	Subscription string         `json:"subscription,omitempty"`
	Bytes        int64          `json:"bytes"`
	Revision     int64          `json:"revision"`
	Live         bool           `json:"live"` // waits are known: the permit store was read
	Limits       []messageLimit `json:"limits"`
	Wait         float64        `json:"wait"` // about, in seconds
	Forever      bool           `json:"forever,omitempty"`
	Why          []string       `json:"why"`
}

// A messageLimit is one limit that the message needs permits of.
type messageLimit struct {
	Limit   dispatch.Reason `json:"limit"`
	Scope   string          `json:"scope"` // whose messages share it
	From    string          `json:"from"`  // the scope that sets it
	Rate    float64         `json:"rate"`  // permits a second
	Mode    policy.Mode     `json:"mode"`
	Permits int64           `json:"permits"` // that the message takes
	Wait    float64         `json:"wait"`    // about, in seconds
	How     string          `json:"how"`     // the arithmetic
}

// messageReport says what would happen to a message.
func (x *explanation) messageReport(f messageFlags) messageReport {
	r := messageReport{
		Topic: x.Topic, Subscription: x.Subscription, Bytes: f.bytes, Revision: x.Revision, Live: x.Live,
		Limits: []messageLimit{},
	}
	say := func(format string, args ...any) { r.Why = append(r.Why, fmt.Sprintf(format, args...)) }
	p := x.effective.Subscription.WithDefaults()
	if p.IsPaused() {
		r.Forever = true
		say("It would wait until the scope is resumed: throttle-admin resume %s", x.from("paused"))
		return r
	}
	for i, l := range x.limits {
		m := messageLimit{
			Limit: l.reason(), Scope: l.scope.String(), From: x.setBy(l), Rate: l.rate.PerSec(),
			Mode: modeOf(l.mode.IsShadow()), Permits: 1,
		}
		if l.bytes {
			m.Permits = f.bytes
		}
		switch {
		case !x.Live:
			m.How = "not known without --permits"
		case l.exemptsCaughtUp() && x.caughtUp() && !*p.CaughtUp.Throttle:
			m.How = "does not apply: the subscription has no backlog"
		default:
			x.predict(&m, x.Limits[i])
		}
		r.Limits = append(r.Limits, m)
	}
	for i, id := range x.quotas {
		q, _ := x.set.Quota(id)
		m := messageLimit{
			Limit: dispatch.ReasonQuota, Scope: id.String(), From: id.String(), Mode: modeOf(q.Shadow), Permits: 1,
		}
		switch {
		case !x.charged(m.Scope, f.tag):
			continue
		case q.Shadow:
			m.How = "does not wait, in shadow mode"
		case q.Total == 0:
			r.Forever = true
			m.How = "paused: its total is 0"
			say("It would wait until the quota has a total: throttle-admin quota set %s total=BYTES", cli.Quote(id))
		case !x.Live:
			m.How = "not known without --permits"
		default:
			v := x.Limits[len(x.limits)+i]
			m.Rate = v.Rate
			x.predict(&m, v)
		}
		r.Limits = append(r.Limits, m)
	}
	longest := messageLimit{}
	for _, m := range r.Limits {
		if m.Mode != policy.Shadow && m.Wait > longest.Wait {
			longest = m
		}
	}
	r.Wait = longest.Wait
	inFlight, most := x.inFlight()
	full := most > 0 && inFlight >= most
	if full {
		say("It would wait until one of %d messages in flight is done, of at most %d in each replica.", inFlight, most)
	}
	switch {
	case r.Forever, full && r.Wait == 0:
	case len(r.Limits) == 0:
		say("It would not wait: no limit applies.")
	case !x.Live:
		say("Whether it would wait is not known: that needs a permit store that replicas share, --permits.")
	case r.Wait == 0:
		say("It would not wait: no limit that applies is used up.")
	default:
		say("It would wait about %s, for the %s of %s, set by %s.", output.Seconds(r.Wait), longest.Limit,
			longest.Scope, longest.From)
	}
	return r
}

// setBy returns the scope that sets a limit's rate.
func (x *explanation) setBy(l limit) string {
	field := "messageRate"
	if l.bytes {
		field = "byteRate"
	}
	switch {
	case l.isAggregate():
		return l.scope.String()
	case l.scope.Kind == policy.SubscriptionKind:
		field = "subscription." + field
	}
	return x.effective.Sources[field].String()
}

// caughtUp reports whether the subscription, or each of the topic's, has no backlog in any replica.
func (x *explanation) caughtUp() bool {
	for _, r := range x.Replicas {
		if !r.CaughtUp {
			return false
		}
	}
	return len(x.Replicas) > 0
}

// charged reports whether the message is charged to a throttling id: that of its tag or, without
// one, that of a consumer that runs. An id without a quota stands for the topic's tenant.
func (x *explanation) charged(id, tag string) bool {
	idOf := func(owner string) string {
		if scope, err := policy.ParseScope(owner); err == nil {
			if _, ok := x.set.Quota(scope); ok {
				return owner
			}
		}
		topic, _ := policy.ParseTopic(x.Topic)
		return policy.TenantScope(topic.Tenant).String()
	}
	if tag != "" {
		return id == idOf(policy.TagScope(tag).String())
	}
	for _, r := range x.Replicas {
		if id == idOf(r.Owner) {
			return true
		}
	}
	return len(x.Replicas) == 0 && id == idOf("")
}

// inFlight returns the messages in flight in the replica with the fewest, and how many it may have.
func (x *explanation) inFlight() (fewest, most int64) {
	for i, r := range x.Replicas {
		if i == 0 || r.InFlight < fewest {
			fewest, most = r.InFlight, r.MaxInFlight
		}
	}
	return fewest, most
}

// predict says how long the message waits for a limit. Callers ahead of it want one permit each, or
// of bytes as many as the message. It needs one permit itself: the others of its bytes are a debt.
func (x *explanation) predict(m *messageLimit, v limitView) {
	waiting, replicas := x.waitingFor(v.Key)
	rate := m.Rate
	if v.InForce > 0 && v.Ramp {
		rate = v.InForce
	}
	debt := float64(x.debtOf(v.Key))
	per := output.Number(rate) + "/s"
	switch {
	case rate == 0:
		m.How = "its rate is not known yet"
		return
	case v.Strict && v.Ahead > 0 && v.Reserved+int64(v.Queued) > int64(waiting): // it is newer
		m.Wait = float64(v.Reserved+int64(v.Queued)+1) / rate
		m.How = fmt.Sprintf("(%d slots allocated + %d callers queued + 1) / %s = %s",
			v.Reserved, v.Queued, per, output.Seconds(m.Wait))
	case waiting == 0 && debt > rate*max(round, v.Ahead):
		m.Wait = debt / rate
		m.How = fmt.Sprintf("%s taken before they were free / %s = %s",
			output.Number(debt), per, output.Seconds(m.Wait))
	case waiting == 0 && (v.Ahead <= round || x.heldOf(v.Key) > 0):
		m.How = "free: no call waits for it"
	case waiting == 0:
		m.Wait = v.Ahead
		m.How = fmt.Sprintf("used up: allocated for the next %s, and no replica holds a permit", output.Seconds(v.Ahead))
	case m.Limit.Bytes():
		m.Wait = (float64(waiting)*float64(m.Permits) + debt) / rate
		m.How = fmt.Sprintf("(%s in %s x %d + %s taken before they were free) / %s = %s", cli.Count(waiting, "waiting call"),
			cli.Count(replicas, "replica"), m.Permits, output.Number(debt), per, output.Seconds(m.Wait))
	default:
		m.Wait = float64(waiting+1) / rate
		m.How = fmt.Sprintf("(%s in %s + 1) x 1 / %s = %s", cli.Count(waiting, "waiting call"),
			cli.Count(replicas, "replica"), per, output.Seconds(m.Wait))
	}
	if m.Mode == policy.Shadow {
		m.How, m.Wait = "does not wait, in shadow mode; else "+m.How, 0
	}
}

// round is how far ahead permits are allocated, in seconds, while a limit is not used up.
const round = 0.2

// debtOf returns how many permits of a limit messages have taken that were not allocated yet: all
// bytes of a message are taken once one is free.
func (x *explanation) debtOf(key string) (debt int64) {
	for l := range x.statsOf(key) {
		debt += l.Debt
	}
	return debt
}

// heldOf returns how many permits of a limit replicas hold.
func (x *explanation) heldOf(key string) (held int64) {
	for l := range x.statsOf(key) {
		held += l.Held
	}
	return held
}

// statsOf are what replicas that are not idle say of a limit.
func (x *explanation) statsOf(key string) iter.Seq[dispatch.LimitStats] {
	return func(yield func(dispatch.LimitStats) bool) {
		for _, r := range x.replicas {
			for _, s := range r.Subscriptions {
				for _, l := range s.Limits {
					if l.Key == key && !yield(l) {
						return
					}
				}
			}
		}
	}
}

// waitingFor returns how many calls wait for a limit, and in how many replicas.
func (x *explanation) waitingFor(key string) (calls, replicas int) {
	for _, r := range x.replicas {
		before := calls
		for _, s := range r.Subscriptions {
			for _, l := range s.Limits {
				if l.Key == key && l.Reason == s.Reason {
					calls += s.Waiting
				}
			}
		}
		if calls > before {
			replicas++
		}
	}
	return calls, replicas
}

func (r messageReport) table(w *strings.Builder) {
	name := r.Topic
	if r.Subscription != "" {
		name = "subscription " + r.Subscription + " of " + name
	}
	fmt.Fprintf(w, "a message of %s, %d bytes, revision %d\n\n", name, r.Bytes, r.Revision)
	var rows [][]string
	for _, m := range r.Limits {
		rate := output.Number(m.Rate) + "/s"
		if m.Mode == policy.Shadow {
			rate += " (shadow)"
		}
		if m.Rate == 0 {
			rate = "-"
		}
		wait := "-"
		if r.Live && m.Rate > 0 {
			wait = output.Seconds(m.Wait)
		}
		rows = append(rows, []string{string(m.Limit), m.From, rate, fmt.Sprint(m.Permits), wait})
	}
	if len(rows) > 0 {
		output.Table(w, []string{"LIMIT", "SET BY", "RATE", "PERMITS", "WAIT"}, rows)
		fmt.Fprintln(w)
	}
	for _, m := range r.Limits {
		if r.Live {
			output.Item(w, string(m.Limit)+": "+m.How)
		}
	}
	for _, why := range r.Why {
		output.Item(w, why)
	}
}
