// Package top holds the command that shows in the terminal how hard topics are throttled.
package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/policy"
)

// Commands returns the commands of this package.
func Commands(a *cli.App) []*cobra.Command { return []*cobra.Command{newTopCommand(a)} }

// A top has the values of the command's flags.
type top struct {
	app         *cli.App
	query       cluster.Query
	once, plain bool
	reader      *cluster.Reader
}

func newTopCommand(a *cli.App) *cobra.Command {
	t := &top{app: a}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live which topics are throttled, and how hard",
		Long: `Show live which topics are throttled, and how hard: the rate of each against its
limit, how long calls wait, the backlog, and when it will be gone. On a terminal, keys sort,
filter, open a topic, explain it, and pause it after a confirmation; ? lists them.

Rates, backlogs and waits are those that replicas publish once a second; the live view reads
them every 2.5 seconds. BEHIND and DRAINED are - if a topic is not behind. Messages that are
charged to no limit are not counted: as a rule, those of a subscription that has caught up.`,
		Example: `  throttle-admin top
  throttle-admin top --filter 'orders throttled' --sort backlog
  throttle-admin top --once
  throttle-admin top --once -o json
  throttle-admin top --plain | tee top.log`,
		Args: cli.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&t.query.Filter, "filter", "", "only topics with each of these words in the topic, "+
		"a subscription or the condition")
	flags.StringVar(&t.query.Sort, "sort", "throttled", strings.Join(cluster.Sorts, ", "))
	flags.BoolVar(&t.query.Reverse, "reverse", false, "sort the other way round")
	flags.IntVar(&t.query.Size, "limit", 20, "how many topics --once and --plain show")
	flags.BoolVar(&t.once, "once", false, "show it once")
	flags.BoolVar(&t.plain, "plain", false, "print a table each second instead of a live one")
	return cmd
}

const (
	settle    = 2200 * time.Millisecond // between two records from which the first rates are known
	liveEvery = 2500 * time.Millisecond // of the live view: a read of 1,000 replicas takes 0.1 s
)

func (t *top) run(ctx context.Context) error {
	var errs []error
	if !slices.Contains(cluster.Sorts, t.query.Sort) {
		errs = append(errs, fmt.Errorf("--sort %.40q: unknown order: want %s", t.query.Sort,
			strings.Join(cluster.Sorts, ", ")))
	}
	if t.query.Size < 1 {
		errs = append(errs, fmt.Errorf("--limit \"%d\": out of range: want 1 or more", t.query.Size))
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Usage(err)
	}
	permits, err := t.app.OpenPermits()
	if err != nil {
		return err
	}
	if permits == nil {
		return cli.Usage(errors.New("--permits: missing: want the permit store that the replicas share, " +
			"such as redis://127.0.0.1:6379"))
	}
	ctx, cancel := context.WithCancel(ctx)
	live, every := !t.once && !t.plain && t.app.Output == "table" && t.app.Terminal(), time.Second
	if live {
		every = liveEvery
	}
	t.reader = cluster.NewReader(permits, t.app.Cluster, every)
	if !live && !t.plain {
		t.reader.ReadAll() // two reads have to do
	}
	if t.app.PoliciesURL != "" {
		ping := t.app.NewPolicyPing()
		defer ping.Close()
		t.reader.AskPolicies(ping.Ask)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.reader.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
		_ = permits.Close() // only read from
	}()
	switch {
	case live:
		return t.live(ctx)
	case t.once, t.app.Output != "table":
		return t.show(ctx)
	}
	return t.print(ctx)
}

// show prints the topics once.
func (t *top) show(ctx context.Context) error {
	// Records of topics on view are read each second, others more rarely if there are many.
	for wait := time.Duration(0); ; wait = 50 * time.Millisecond {
		if !sleep(ctx, wait) {
			return nil
		}
		if _, status := t.reader.Overview(t.query); status.Error != "" {
			return errors.New("permit store: " + status.Error)
		} else if !status.Unread {
			break
		}
	}
	if !sleep(ctx, settle) {
		return nil
	}
	o, status := t.reader.Overview(t.query)
	if status.Error != "" {
		return errors.New("permit store: " + status.Error)
	}
	return t.app.Print(o, func(w *strings.Builder) { table(w, o, status) })
}

// sleep waits, and reports whether it was not ended by ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// print prints the topics once a second until ctx ends.
func (t *top) print(ctx context.Context) error {
	for sleep(ctx, time.Second) {
		o, status := t.reader.Overview(t.query)
		if err := t.app.Print(o, func(w *strings.Builder) {
			table(w, o, status)
			fmt.Fprintln(w)
		}); err != nil {
			return err
		}
	}
	return nil
}

// table writes an overview as a text.
func table(w *strings.Builder, o cluster.Overview, status cluster.Status) {
	if !status.Unread {
		output.Text(w, "%s", summary(o))
	}
	if text := wrong(status, o.Time); text != "" {
		output.Text(w, "%s", text)
	}
	var rows [][]string
	for _, r := range o.Rows {
		rows = append(rows, cells(r, o.Time))
	}
	if len(rows) > 0 {
		output.Table(w, columns, rows)
	}
	if n := o.Matching - len(o.Rows); n > 0 {
		fmt.Fprintf(w, "and %s more\n", cli.Count(n, "topic"))
	}
	if len(o.Aggregates) > 0 {
		fmt.Fprintln(w)
		output.Table(w, aggregateColumns, aggregateRows(o.Aggregates))
	}
	if n := o.MatchingAggregates - len(o.Aggregates); n > 0 {
		fmt.Fprintf(w, "and %s of several topics more\n", cli.Count(n, "limit"))
	}
}

var aggregateColumns = []string{"LIMIT OF SEVERAL TOPICS", "CONDITION", "RATE", "LIMIT", "WAITING CALLS", "TOPICS", "OF THESE WAIT"}

func aggregateRows(all []cluster.Aggregate) (rows [][]string) {
	for _, a := range all {
		rows = append(rows, []string{
			a.Scope, string(a.Condition), aggregateRate(a), limitRate(a.Limit), fmt.Sprint(a.Waiting), fmt.Sprint(a.Topics), fmt.Sprint(a.Throttled),
		})
	}
	return rows
}

// aggregateRate is at least as large, if the rates of some topics are unknown.
func aggregateRate(a cluster.Aggregate) string {
	text := rate(a.Rate, a.Limit, false)
	if a.Unknown > 0 && a.Rate.Known() {
		return "at least " + text
	}
	return text
}

// wrong says what of the cluster cannot be read, if something cannot: first what and since when,
// since a terminal may have room for no more, and then why.
func wrong(s cluster.Status, now time.Time) string {
	var what, why []string
	if p := s.Policies; p.Error != "" {
		what, why = append(what, "policy store not reached for "+ago(p.Since, now)), append(why, p.Error)
	}
	switch {
	case s.Error != "" && s.Unread:
		what, why = append(what, "permit store not reached yet"), append(why, s.Error)
	case s.Error != "":
		what = append(what, fmt.Sprintf("permit store not reached for %s, the values are as old", ago(s.Since, now)))
		why = append(why, s.Error)
	case s.Unread:
		what = append(what, "nothing has been read yet")
	case s.Unreadable != "":
		why = append(why, s.Unreadable)
	}
	text := strings.Join(what, "; ")
	if text != "" && len(why) > 0 {
		text += ": "
	}
	return text + strings.Join(why, "; ")
}

// summary says how the cluster is, whatever the filter.
func summary(o cluster.Overview) string {
	texts := []string{cli.Count(o.Totals.Topics, "topic")}
	for _, c := range cluster.Conditions {
		if n := o.Totals.Conditions[c]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n, c))
		}
	}
	texts = append(texts, cli.Count(o.Totals.Waiting, "waiting call"), cli.Count(o.Totals.Replicas, "replica"))
	if n := o.Totals.More; n > 0 {
		texts = append(texts, fmt.Sprintf("%d more subscriptions that replicas do not publish", n))
	}
	return strings.Join(texts, ", ")
}

var columns = []string{"TOPIC", "CONDITION", "RATE", "LIMIT", "WAIT P99", "BACKLOG", "BEHIND", "DRAINED", "REPLICAS"}

// cells are what a table shows of a topic.
func cells(r cluster.Row, now time.Time) []string {
	return []string{
		r.Topic, condition(r.Condition, r.Since, now), rate(r.Rate, r.Limit, r.Uncounted), limit(r), waitP99(r),
		number(r.Backlog), behind(r, now), drained(r), fmt.Sprint(r.Replicas),
	}
}

func condition(c cluster.Condition, since, now time.Time) string {
	if c == cluster.Stale {
		return "stale for " + ago(since, now)
	}
	return string(c)
}

// rate is that of a topic or a subscription. Messages that are charged to no limit are not counted.
func rate(n cluster.Number, l cluster.Limit, uncounted bool) string {
	switch {
	case uncounted:
		return "not counted"
	case !n.Known():
		return unknown
	}
	return number(n) + unit(l)
}

const unknown = "unknown"

func limit(r cluster.Row) string {
	l := r.Limit
	switch {
	case r.Several:
		return "several"
	case r.Unlimited:
		return "none"
	case l.Reason == "":
		return unknown
	}
	return limitRate(l)
}

func limitRate(l cluster.Limit) string {
	text := number(cluster.Number(l.Rate)) + unit(l)
	if l.Shadow {
		text += " (shadow)"
	}
	return text
}

func unit(l cluster.Limit) string {
	if l.Reason.Bytes() {
		return " B/s"
	}
	return "/s"
}

// number writes a number, from 10,000 on with an SI prefix.
func number(n cluster.Number) string {
	x := float64(n)
	switch {
	case !n.Known():
		return unknown
	case x >= 1e12:
		return output.Number(x/1e12) + "T"
	case x >= 1e9:
		return output.Number(x/1e9) + "G"
	case x >= 1e6:
		return output.Number(x/1e6) + "M"
	case x >= 1e4:
		return output.Number(x/1e3) + "k"
	}
	return output.Number(x)
}

// waitP99 writes the wait that 99 % of the calls do not exceed.
func waitP99(r cluster.Row) string {
	if r.WaitLonger {
		return ">" + seconds(r.WaitP99)
	}
	return seconds(r.WaitP99)
}

// seconds writes a number of seconds.
func seconds(n cluster.Number) string {
	switch {
	case !n.Known():
		return unknown
	case n == 0:
		return "none"
	case n < 60:
		return output.Seconds(float64(n))
	}
	return policy.Duration(time.Duration(float64(n) * 1e9).Round(time.Second)).String()
}

// behind writes for how long a topic is behind.
func behind(r cluster.Row, now time.Time) string {
	switch {
	case r.NotBehind:
		return "-"
	case r.BehindSince.IsZero():
		return unknown
	}
	return ago(r.BehindSince, now)
}

// drained writes when a topic will not be behind.
func drained(r cluster.Row) string {
	if r.NotBehind {
		return "-"
	}
	return seconds(r.DrainedIn)
}

// ago writes how long ago a time is.
func ago(t, now time.Time) string {
	return policy.Duration(max(0, now.Sub(t)).Round(time.Second)).String()
}
