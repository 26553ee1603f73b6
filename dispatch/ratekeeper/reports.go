package ratekeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/quota"
	"github.com/dispatchthrottle/throttle/policy"
)

// Bounds of the reports that a process accepts.
const (
	maxReport      = permits.MaxRecord // size of one, in bytes
	maxReportBytes = 64 << 20          // of all backends that have reported lately
	maxReporters   = 10_000            // such backends
)

// reportTTL is how long a report counts if no newer one arrives.
const reportTTL = 5 * time.Second

// Accepted is the answer to a report.
type Accepted struct {
	// WithoutQuota has up to 20 ids of the report without a quota. Their cost counts as load, and
	// they are not limited.
	WithoutQuota []quota.ID `json:"withoutQuota,omitempty"`

	MoreWithout int  `json:"moreWithoutQuota,omitempty"` // number of such ids not named
	Outdated    bool `json:"outdated,omitempty"`         // ignored, since a newer report came first
}

// A keptReport is the newest report of a backend, by its own time, that came to this process.
type keptReport struct {
	time float64
	text []byte
}

// Handler accepts reports of backends by HTTP: POST with `Authorization: Bearer TOKEN` and a
// [quota.Report] as JSON, whose time is in seconds of Unix time. Every process that runs a
// Ratekeeper may serve it, whether it leads or not. owner returns the backend that has a token, as
// [Tokens.Backend] does; a token is good for reports of that backend only.
//
// The answer is 200 with an [Accepted], 400 with all faults of the report, 401, 403, 405, 413, 429
// if too much is reported to this process, or 503 if the policies or the permit store are
// unavailable.
func (r *Ratekeeper) Handler(owner func(token string) (backend string, ok bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
		backend, ok := owner(token)
		switch {
		case !strings.EqualFold(scheme, "Bearer") || !ok:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "wrong token: send Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		case req.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "wrong method: use POST", http.StatusMethodNotAllowed)
			return
		}
		var report quota.Report
		in := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxReport))
		in.DisallowUnknownFields()
		err := in.Decode(&report)
		if err == nil && !errors.Is(in.Decode(&struct{}{}), io.EOF) {
			err = errors.New("more data follows it")
		}
		if err != nil {
			status := http.StatusBadRequest
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				status = http.StatusRequestEntityTooLarge
			}
			http.Error(w, fmt.Sprintf("want one report as JSON: %v", err), status)
			return
		}
		if report.Backend != backend && report.Backend != "" { // which check refuses
			http.Error(w, fmt.Sprintf("backend %.300q: the token is that of backend %q",
				report.Backend, backend), http.StatusForbidden)
			return
		}
		set := r.policies().Set
		if set == nil {
			http.Error(w, "policies not read yet: try again", http.StatusServiceUnavailable)
			return
		}
		accepted, err := check(report, set, float64(time.Now().UnixMicro())/1e6)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		accepted.Outdated, err = r.keep(req.Context(), report)
		if full, ok := errors.AsType[*fullError](err); ok {
			http.Error(w, full.Error(), full.status)
			return
		}
		if err != nil {
			r.Logger.Warn("cannot store a report", "backend", report.Backend, "error", err)
			http.Error(w, "permit store unavailable: try again", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(accepted) // a failure means that the client is gone
	})
}

// keep publishes a report, unless a newer one of its backend has arrived. If several processes keep
// reports of one backend, the newest counts.
func (r *Ratekeeper) keep(ctx context.Context, report quota.Report) (outdated bool, err error) {
	name := "backend:" + report.Backend
	text, err := json.Marshal(dispatch.Usage{Replica: name, Backends: []quota.Report{report}})
	if err != nil {
		return false, err
	}
	if err := permits.CheckRecord(text); err != nil {
		return false, &fullError{http.StatusRequestEntityTooLarge, err.Error()}
	}
	mine := &keptReport{report.Time, text}
	newest, err := r.newest(name, mine)
	for outdated = newest != mine; !outdated && err == nil; {
		usage := permits.UsageOf(r.Cluster)
		err = r.Permits.Publish(ctx, usage, name+"|"+r.Name, newest.text, reportTTL)
		if err != nil {
			break
		}
		later, full := r.newest(name, newest)
		err = full
		if later == newest {
			break
		}
		newest = later // it arrived during Publish, which may have overwritten it
	}
	return outdated, err
}

// A fullError is why a process does not keep a report: a status of HTTP and what to do.
type fullError struct {
	status int
	text   string
}

func (e *fullError) Error() string { return e.text }

// newest returns the newer of k and the newest report that this process has of the backend. It
// keeps k if that is the newer one, and there is room.
func (r *Ratekeeper) newest(name string, k *keptReport) (*keptReport, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.sweptAt) >= time.Second {
		r.sweptAt = now
		// A report of that age is refused.
		since := float64(now.UnixMicro())/1e6 - 2*reportTTL.Seconds()
		maps.DeleteFunc(r.reports, func(_ string, old *keptReport) bool {
			if old.time >= since {
				return false
			}
			r.reportBytes -= len(old.text)
			return true
		})
	}
	before := r.reports[name]
	if before == k || before != nil && before.time > k.time {
		return before, nil
	}
	size := r.reportBytes + len(k.text)
	if before != nil {
		size -= len(before.text)
	} else if len(r.reports) >= maxReporters {
		return k, &fullError{http.StatusTooManyRequests, fmt.Sprintf("%d backends report to this "+
			"ratekeeper: report sums of several backends, or to another ratekeeper", maxReporters)}
	}
	if size > maxReportBytes {
		return k, &fullError{http.StatusTooManyRequests, fmt.Sprintf("the reports to this "+
			"ratekeeper have %d bytes: report fewer ids without a quota", maxReportBytes)}
	}
	if r.reports == nil {
		r.reports = map[string]*keptReport{}
	}
	r.reports[name], r.reportBytes = k, size
	return k, nil
}

// check returns every fault of a report, or else the ids in it without a quota.
func check(r quota.Report, set *policy.Set, now float64) (a Accepted, err error) {
	errs := []error{r.Validate(set.QuotaSettings().Zones, now)}
	for _, id := range slices.Sorted(maps.Keys(r.Costs)) {
		scope, err := policy.ParseScope(string(id))
		if err != nil || scope.Kind != policy.TenantKind && scope.Kind != policy.TagKind {
			err = fmt.Errorf("id %.300q: is invalid: want tenant:NAME or tag:NAME", id)
			errs = append(errs, err)
		} else if _, ok := set.Quota(scope); !ok {
			a.WithoutQuota = append(a.WithoutQuota, id)
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		if n := len(a.WithoutQuota) - maxNamed; n > 0 {
			a.WithoutQuota, a.MoreWithout = a.WithoutQuota[:maxNamed], n
		}
		return a, nil
	}
	faults := strings.Split(err.Error(), "\n")
	if n := len(faults) - maxNamed; n > 0 {
		faults = append(faults[:maxNamed], fmt.Sprintf("and %d more", n))
	}
	return Accepted{}, errors.New(strings.Join(faults, "\n"))
}

// maxNamed bounds the ids and the faults that an answer names.
const maxNamed = 20
