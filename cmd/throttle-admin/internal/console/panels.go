package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cluster"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/doctor"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/explain"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/history"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/quotas"
	"github.com/dispatchthrottle/throttle/policy"
)

// allPanels are all that pages are made of. Panels of commands have the JSON that these print.
func (s *server) allPanels() map[string]panel {
	return map[string]panel{
		"status":   {every: time.Second, show: s.status},
		"overview": {every: time.Second, params: []string{"filter", "sort", "reverse", "page", "size"}, show: s.overview},
		"topic":    {every: time.Second, params: []string{"topic"}, show: s.topic},
		"points":   {every: time.Second, params: []string{"topic", "since"}, show: s.points},
		"explain": {every: 3 * time.Second, runs: true, params: []string{"topic"}, show: s.command(explain.Commands,
			func(q url.Values) ([]string, error) { return []string{"explain", "--", q.Get("topic")}, nil })},
		"history": {every: 3 * time.Second, runs: true, params: []string{"scope", "topic", "before", "limit"}, show: s.history},
		// newest, the newest revision that the page knows, is for an answer that is not older.
		"diff": {every: 3 * time.Second, runs: true, params: []string{"revision", "newest"}, show: s.command(history.Commands, func(q url.Values) ([]string, error) {
			_, err := numberOf(q, "revision", 0, maxRevision)
			return []string{"history", "diff", "--", q.Get("revision")}, err
		})},
		"quotas": {every: 3 * time.Second, runs: true, show: s.command(quotas.Commands, func(url.Values) ([]string, error) {
			return []string{"quota", "status"}, nil
		})},
		"decisions": {every: quotasEvery, params: []string{"since"}, show: s.decisions},
		"health": {every: 30 * time.Second, runs: true, show: s.command(doctor.Commands, func(url.Values) ([]string, error) {
			return []string{"doctor"}, nil
		})},
		"console": {every: time.Second, show: s.cost},
	}
}

const (
	maxRows     = 200  // of an overview
	maxShown    = 5    // subscriptions of a row
	maxRecords  = 1000 // of a history
	maxRevision = 1<<63 - 1
)

// An overviewAnswer is the panel with the topics.
type overviewAnswer struct {
	Cluster string         `json:"cluster"`
	Status  cluster.Status `json:"status"`
	cluster.Overview
}

func (s *server) overview(_ context.Context, q url.Values) (any, int64, error) {
	query := cluster.Query{Filter: q.Get("filter"), Sort: q.Get("sort"), Reverse: q.Get("reverse") == "true", Most: maxShown}
	var errs []error
	if query.Sort != "" && !slices.Contains(cluster.Sorts, query.Sort) {
		errs = append(errs, fmt.Errorf("sort %.40q: unknown order: want %s", query.Sort, strings.Join(cluster.Sorts, ", ")))
	}
	if len(query.Filter) > cluster.MaxFilter {
		errs = append(errs, fmt.Errorf("filter: has %d bytes: want at most %d", len(query.Filter), cluster.MaxFilter))
	}
	page, err := numberOf(q, "page", 0, 1<<20)
	errs = append(errs, err)
	size, err := numberOf(q, "size", 50, maxRows)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, 0, badQuery{err}
	}
	query.Page, query.Size = int(page), int(size)
	o, status := s.reader.Overview(query)
	return overviewAnswer{s.app.Cluster, status, o}, 0, nil
}

// numberOf returns a number of a query, 0 to most.
func numberOf(q url.Values, name string, otherwise, most int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, badQuery{fmt.Errorf("%s %.40q: out of range: want 0..%d", name, text, most)}
	}
	return n, nil
}

// A topicAnswer is the panel of a topic.
type topicAnswer struct {
	Cluster string         `json:"cluster"`
	Status  cluster.Status `json:"status"`
	Time    time.Time      `json:"time"`
	IsTopic bool           `json:"isTopic"` // else the name may be that of a scope with many
	Row     *cluster.Row   `json:"row"`     // null if no replica has published it in the last hour
}

// A statusAnswer says how well the console can read.
type statusAnswer struct {
	Cluster string         `json:"cluster"`
	Status  cluster.Status `json:"status"`
	Time    time.Time      `json:"time"`
}

func (s *server) status(context.Context, url.Values) (any, int64, error) {
	return statusAnswer{s.app.Cluster, s.reader.Status(), time.Now()}, 0, nil
}

func (s *server) topic(_ context.Context, q url.Values) (any, int64, error) {
	name := q.Get("topic")
	t, err := policy.ParseTopic(name)
	a := topicAnswer{Cluster: s.app.Cluster, Time: time.Now(), IsTopic: err == nil && t.String() == name}
	row, status, ok := s.reader.Topic(name)
	if a.Status = status; ok {
		a.Row = &row
	}
	return a, 0, nil
}

// points is the panel with the plots of a topic: what came after since, in Unix seconds.
func (s *server) points(_ context.Context, q url.Values) (any, int64, error) {
	since, err := numberOf(q, "since", 0, maxRevision)
	if err != nil {
		return nil, 0, err
	}
	p := s.reader.Points(q.Get("topic"), since)
	if n := len(p.Times); n > 0 {
		since = p.Times[n-1]
	}
	return p, since, nil
}

// decisions is the panel with the plots of quotas, likewise.
func (s *server) decisions(_ context.Context, q url.Values) (any, int64, error) {
	since, err := numberOf(q, "since", 0, maxRevision)
	if err != nil {
		return nil, 0, err
	}
	p := s.quotas.since(since, time.Now())
	if n := len(p.Times); n > 0 {
		since = p.Times[n-1]
	}
	return p, since, nil
}

// history is the panel with the changes of a scope, of all that apply to a topic, or of all. Those
// of topics are taken from the newest changes of all, which are read once for all topics on view.
func (s *server) history(ctx context.Context, q url.Values) (any, int64, error) {
	text := q.Get("topic")
	if text == "" {
		return s.command(history.Commands, historyArgs)(ctx, q)
	}
	t, err := policy.ParseTopic(text)
	errs := []error{err}
	if q.Get("scope") != "" || q.Get("before") != "" {
		errs = append(errs, errors.New("topic: comes with limit only"))
	}
	limit, err := numberOf(q, "limit", 30, maxRecords)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, 0, badQuery{err}
	}
	all, err := s.answer(ctx, "history", url.Values{"limit": {strconv.Itoa(maxRecords)}})
	if err != nil {
		return nil, 0, err
	}
	var list struct {
		Records []change.RecordView `json:"records"`
	}
	if err := json.Unmarshal(all.text, &list); err != nil {
		return nil, 0, err
	}
	applies := func(c change.View) bool {
		scope, err := policy.ParseScope(c.Scope)
		return err == nil && scope.AppliesTo(s.app.Cluster, t)
	}
	records := []change.RecordView{}
	for _, r := range list.Records {
		r.Changes = slices.DeleteFunc(r.Changes, func(c change.View) bool { return !applies(c) })
		if len(r.Changes) > 0 && len(records) < int(limit) {
			records = append(records, r)
		}
	}
	list.Records = records
	return list, 0, nil
}

// historyArgs are those of the changes of a scope, or of all.
func historyArgs(q url.Values) ([]string, error) {
	before, err := numberOf(q, "before", 0, maxRevision)
	limit, err2 := numberOf(q, "limit", 30, maxRecords)
	if err := errors.Join(err, err2); err != nil {
		return nil, badQuery{err}
	}
	args := []string{"history", fmt.Sprintf("--before=%d", before), fmt.Sprintf("--limit=%d", limit)}
	if scope := q.Get("scope"); scope != "" {
		args = append(args, "--", scope)
	}
	return args, nil
}

// command returns a panel that a command prints.
func (s *server) command(
	family cli.Family, argsOf func(url.Values) ([]string, error),
) func(context.Context, url.Values) (any, int64, error) {
	return func(ctx context.Context, q url.Values) (any, int64, error) {
		args, err := argsOf(q)
		if err != nil {
			return nil, 0, err
		}
		select {
		case s.commands <- struct{}{}:
			defer func() { <-s.commands }()
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("%s: others take too long: %w", args[0], ctx.Err())
		}
		printed, err := s.app.Execute(ctx, family, "json", args...)
		if json.Valid([]byte(printed)) && printed != "" {
			return json.RawMessage(printed), 0, nil // with what is wrong, if something is
		}
		return nil, 0, err
	}
}

// A costAnswer is what the console itself costs.
type costAnswer struct {
	Cluster  string  `json:"cluster"`
	Uptime   float64 `json:"uptime"` // seconds
	CPU      float64 `json:"cpu"`    // of one core, since the start
	Memory   uint64  `json:"memory"` // bytes
	Plots    int     `json:"plots"`  // of it, about
	Browsers int64   `json:"browsers"`
	Records  int     `json:"records"` // read in the last second
}

func (s *server) cost(context.Context, url.Values) (any, int64, error) {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	cost := s.reader.Cost()
	a := costAnswer{
		Cluster: s.app.Cluster, Uptime: time.Since(s.started).Seconds(), Memory: samples[0].Value.Uint64() - samples[1].Value.Uint64(),
		Plots: cost.Points + s.quotas.bytes(), Browsers: s.streams.Load(), Records: cost.Records,
	}
	a.CPU = (cpuSeconds() - s.cpuBefore) / a.Uptime
	return a, 0, nil
}
