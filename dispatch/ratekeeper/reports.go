package ratekeeper

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
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

// mostReport bounds a report's size, in bytes.
const mostReport = 4 << 20

// reportTTL is how long a report counts, unless the next one comes.
const reportTTL = 5 * time.Second

// Accepted is the answer to a report.
type Accepted struct {
	WithoutQuota []quota.ID `json:"withoutQuota,omitempty"` // ids of the report that have none, 20 at most; their cost counts, and nothing limits them
	MoreWithout  int        `json:"moreWithoutQuota,omitempty"`
	Outdated     bool       `json:"outdated,omitempty"` // a newer report of the backend, by its own time, came before: this one does not count
}

// A keptReport is the newest of a backend by its own time, of those that came to this process.
type keptReport struct {
	time float64
	text []byte
}

// Handler takes reports of backends, for any that can do HTTP: POST with `Authorization: Bearer TOKEN` and a [quota.Report] as JSON, of which Time is
// that of the report, in seconds of Unix time. Every process that runs a Ratekeeper may serve it, also one that does not lead. An empty
// token lets nobody in.
//
// It answers 200 with an [Accepted], 400 with all faults of the report, 401, 405, 413, or 503 while policies or permit store are away.
func (r *Ratekeeper) Handler(token string) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got := sha256.Sum256([]byte(req.Header.Get("Authorization")))
		switch {
		case token == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token is wrong: send Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		case req.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "reports come by POST", http.StatusMethodNotAllowed)
			return
		}
		var report quota.Report
		in := json.NewDecoder(http.MaxBytesReader(w, req.Body, mostReport))
		in.DisallowUnknownFields()
		err := in.Decode(&report)
		if err == nil && !errors.Is(in.Decode(&struct{}{}), io.EOF) {
			err = errors.New("something follows it")
		}
		if err != nil {
			status := http.StatusBadRequest
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				status = http.StatusRequestEntityTooLarge
			}
			http.Error(w, fmt.Sprintf("the report is no JSON of a report: %v", err), status)
			return
		}
		set := r.policies().Set
		if set == nil {
			http.Error(w, "the policies have not been read yet: try again", http.StatusServiceUnavailable)
			return
		}
		accepted, err := check(report, set, float64(time.Now().UnixMicro())/1e6)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		accepted.Outdated, err = r.keep(req.Context(), report)
		if err != nil {
			r.Logger.Warn("a report could not be kept", "backend", report.Backend, "error", err)
			http.Error(w, "the permit store does not answer: try again", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(accepted) // who has gone does not want it
	})
}

// keep publishes a report, unless a newer one of its backend came before. Of those that several processes keep of a backend, the newest counts.
func (r *Ratekeeper) keep(ctx context.Context, report quota.Report) (outdated bool, err error) {
	name := "backend:" + report.Backend
	text, err := json.Marshal(dispatch.Usage{Replica: name, Backends: []quota.Report{report}})
	if err != nil {
		return false, err
	}
	mine := &keptReport{report.Time, text}
	newest := r.newest(name, mine)
	for outdated = newest != mine; !outdated; {
		err = r.Permits.Publish(ctx, permits.UsageOf(r.Cluster), name+"|"+r.Name, newest.text, reportTTL)
		later := r.newest(name, newest)
		if err != nil || later == newest {
			break
		}
		newest = later // it came while the other was on its way, which may have arrived after it
	}
	return outdated, err
}

// newest returns the newest of what came to this process of a backend and k, which may be that.
func (r *Ratekeeper) newest(name string, k *keptReport) *keptReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reports, func(_ string, old *keptReport) bool { return old.time < k.time-2*reportTTL.Seconds() }) // so old that it is refused
	if before := r.reports[name]; before != nil && before.time > k.time {
		return before
	}
	if r.reports == nil {
		r.reports = map[string]*keptReport{}
	}
	r.reports[name] = k
	return k
}

// check returns all faults of a report, and which of its ids have no quota.
func check(r quota.Report, set *policy.Set, now float64) (a Accepted, err error) {
	errs := []error{r.Validate(set.Ratekeeping().Zones, now)}
	for _, id := range slices.Sorted(maps.Keys(r.Costs)) {
		scope, err := policy.ParseScope(string(id))
		if err != nil || scope.Kind != policy.TenantKind && scope.Kind != policy.TagKind {
			errs = append(errs, fmt.Errorf("id %.300q: is no throttling id: write tenant:NAME or tag:NAME", id))
		} else if _, ok := set.Quota(scope); !ok {
			a.WithoutQuota = append(a.WithoutQuota, id)
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		if n := len(a.WithoutQuota) - mostNamed; n > 0 {
			a.WithoutQuota, a.MoreWithout = a.WithoutQuota[:mostNamed], n
		}
		return a, nil
	}
	faults := strings.Split(err.Error(), "\n")
	if n := len(faults) - mostNamed; n > 0 {
		faults = append(faults[:mostNamed], fmt.Sprintf("and %d more", n))
	}
	return Accepted{}, errors.New(strings.Join(faults, "\n"))
}

// mostNamed bounds what is said of one report.
const mostNamed = 20
