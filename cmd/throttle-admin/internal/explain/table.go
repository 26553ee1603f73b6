package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
)

// table writes the explanation for people.
func (x *explanation) table(w *strings.Builder, now time.Time) {
	name := x.Topic
	if x.Subscription != "" {
		name = "subscription " + x.Subscription + " of " + name
	}
	fmt.Fprintf(w, "%s, cluster %s, revision %d\n\n", name, x.Cluster, x.Revision)
	x.writeFields(w, now)
	x.writeLimits(w)
	x.writeReplicas(w)
	fmt.Fprintln(w)
	for _, why := range x.Why {
		output.Item(w, why)
	}
}

func (x *explanation) writeFields(w *strings.Builder, now time.Time) {
	var rows [][]string
	for _, f := range x.Fields {
		value := f.Value
		if f.Mode == policy.Shadow {
			value += " (shadow)"
		}
		row := []string{f.Field, value, f.From, output.Expires(f.Expires, now)}
		if f.From == "" {
			row[2], row[3] = "default", "-"
		}
		rows = append(rows, row)
	}
	output.Table(w, []string{"FIELD", "VALUE", "FROM", "EXPIRES"}, rows)
}

func (x *explanation) writeLimits(w *strings.Builder) {
	var rows [][]string
	for _, l := range x.Limits {
		row := []string{
			string(l.Limit), output.Number(l.Rate) + "/s", string(l.Mode), "no consumers", "-", "-",
		}
		if l.Limit == dispatch.ReasonQuota {
			row[0] += " of " + l.Scope
			if l.Rate == 0 {
				row[1] = "-"
			}
		}
		if l.Sharing != "" {
			row[3] = "by " + string(l.Sharing)
		}
		if l.InForce != 0 {
			row[3] = output.Number(l.InForce) + "/s"
			permits := output.Number(l.Allocated)
			row[4] = fmt.Sprintf("%s (%s permits)", output.Seconds(l.Ahead), permits)
			row[5] = fmt.Sprint(l.Revision)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		output.Table(w, []string{"LIMIT", "RATE", "MODE", "IN FORCE", "ALLOCATED AHEAD", "REVISION"}, rows)
	}
}

func (x *explanation) writeReplicas(w *strings.Builder) {
	var rows [][]string
	for _, r := range x.Replicas {
		share, backlog := "-", "unknown"
		if r.Share > 0 {
			share = output.Number(r.Share) + "/s"
		}
		if r.Backlog >= 0 {
			backlog = fmt.Sprint(r.Backlog)
		}
		rows = append(rows, []string{
			r.name(), r.Replica, share, output.Number(r.Use) + "/s", fmt.Sprint(r.Waiting), backlog,
			r.State,
		})
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		output.Table(w, []string{
			"SUBSCRIPTION", "REPLICA", "SHARE", "USE", "WAITING", "BACKLOG", "STATE",
		}, rows)
	}
}
