package numaflowthrottle_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sinker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// numbered is a datum whose value is its number. Every third has a tag with a quota, every third
// one without.
func numbered(value []byte) datum {
	n, err := strconv.Atoi(string(value))
	if err != nil {
		panic(err)
	}
	return datum{value: value, headers: []map[string]string{nil, {"tag": "bulk"}, {"tag": "nobody"}}[n%3]}
}

func tagOf(headers map[string]string) string { return headers["tag"] }

// runs are those of kinds, and a sink.
func runs() map[string]func(t *testing.T, lim *dispatch.Limiter, n int, opts ...numaflowthrottle.Option) {
	all := map[string]func(t *testing.T, lim *dispatch.Limiter, n int, opts ...numaflowthrottle.Option){
		"Sink": func(t *testing.T, lim *dispatch.Limiter, n int, opts ...numaflowthrottle.Option) {
			var calls []call
			s, err := numaflowthrottle.Sink(recorder(&calls, 0), lim, opts...)
			require.NoError(t, err)
			in := make(chan sinker.Datum)
			go func() {
				defer close(in)
				for i := range n {
					d := numbered(fmt.Append(nil, i))
					d.id = fmt.Sprint(i)
					in <- sinkDatum{d}
				}
			}()
			assert.Equal(t, numbers(0, n), idsOf(s.Sink(t.Context(), in)))
		},
	}
	for name, run := range kinds {
		all[name] = func(t *testing.T, lim *dispatch.Limiter, n int, opts ...numaflowthrottle.Option) {
			assert.EqualValues(t, n, run(t, lim, n, false, opts...))
		}
	}
	return all
}

// TestQuotaOfTheOwnerAndOfTags: a datum is charged to its tag if that has a quota, else to the
// owner of the wrapper, else to the namespace.
func TestQuotaOfTheOwnerAndOfTags(t *testing.T) {
	ids := []string{"tenant:team", "tenant:big", "tag:own", "tag:bulk"}
	for _, c := range []struct {
		name string
		opts []numaflowthrottle.Option
		want []int64 // by ids
	}{
		{"the namespace", nil, []int64{30, 0, 0, 0}},
		{"a tag", []numaflowthrottle.Option{numaflowthrottle.WithOwner(dispatch.WithTag("own"))}, []int64{0, 0, 30, 0}},
		{"tags of data", []numaflowthrottle.Option{
			numaflowthrottle.WithOwner(dispatch.WithTag("own")), numaflowthrottle.WithTagOf(tagOf),
		}, []int64{0, 0, 20, 10}},
		{"tags of data, no owner", []numaflowthrottle.Option{numaflowthrottle.WithTagOf(tagOf)}, []int64{20, 0, 0, 10}},
		{"a tenant group", []numaflowthrottle.Option{
			numaflowthrottle.WithOwner(dispatch.WithTenantGroup("big")), numaflowthrottle.WithTagOf(tagOf),
		}, []int64{0, 30, 0, 0}},
	} {
		for kind, run := range runs() {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lim := throttletest.Open(t, policy.Policy{})
					for _, id := range ids {
						lim.Add(id, throttletest.Quota(1000))
					}
					run(t, lim.Limiter, 30, append(c.opts, numaflowthrottle.WithTopic(topic), quiet)...)
					time.Sleep(5 * time.Second) // what was acquired ahead goes back
					for i, id := range ids {
						assert.Equal(t, c.want[i], lim.Granted(id), id)
					}
				})
			})
		}
	}
}

// TestTheQuotaOfATagHolds, where nothing else is limited.
func TestTheQuotaOfATagHolds(t *testing.T) {
	for kind, run := range runs() {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lim := throttletest.Open(t, policy.Policy{})
				lim.Add("tag:bulk", throttletest.Quota(20))
				begin := time.Now()
				run(t, lim.Limiter, 300, numaflowthrottle.WithTopic(topic), numaflowthrottle.WithTagOf(tagOf), quiet)
				assert.InDelta(t, 5, time.Since(begin).Seconds(), 0.3, "100 of them, 20 a second")
			})
		})
	}
}

// TestProcessEndsWhileATagWaits: what waits for a tag's quota is refused, too.
func TestProcessEndsWhileATagWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := throttletest.Open(t, policy.Policy{})
		lim.Add("tag:bulk", throttletest.Quota(0))
		process, end := context.WithCancel(t.Context())
		var calls []call
		s, err := numaflowthrottle.Sink(recorder(&calls, 0), lim.Limiter,
			numaflowthrottle.WithTopic(topic), numaflowthrottle.WithTagOf(tagOf),
			numaflowthrottle.WithProcess(process), quiet)
		require.NoError(t, err)
		in := make(chan sinker.Datum, 3)
		for i := range 3 {
			d := numbered(fmt.Append(nil, i))
			d.id = fmt.Sprint(i)
			in <- sinkDatum{d}
		}
		close(in)
		begin := time.Now()
		time.AfterFunc(5*time.Second, end)
		responses := s.Sink(t.Context(), in)
		assert.InDelta(t, 9, time.Since(begin).Seconds(), 0.5)
		require.Len(t, responses, 3)
		assert.True(t, responses[0].Success, "it has no tag")
		assert.Contains(t, responses[1].Err, "wait for a permit")
		assert.Contains(t, responses[2].Err, "wait for a permit", "it is behind")
	})
}
