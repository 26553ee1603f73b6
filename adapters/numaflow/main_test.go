package numaflowthrottle_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	numaflowthrottle "github.com/dispatchthrottle/throttle/adapters/numaflow"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/policy"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

const topic = "numaflow://team/orders/in"

var quiet = numaflowthrottle.WithLogger(slog.New(slog.DiscardHandler))

// open opens a Limiter with one policy, for tests in virtual time.
func open(t testing.TB, p policy.Policy) *dispatch.Limiter {
	t.Helper()
	lim, err := dispatch.Open(context.WithoutCancel(t.Context()), dispatch.Config{Policies: dispatch.Fixed(p)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim
}

// A datum is one of any of the SDK's interfaces.
type datum struct {
	id      string
	value   []byte
	keys    []string
	headers map[string]string
}

func (d datum) ID() string                 { return d.id }
func (d datum) Id() string                 { return d.id }
func (d datum) Value() []byte              { return d.value }
func (d datum) Keys() []string             { return d.keys }
func (d datum) Headers() map[string]string { return d.headers }
func (d datum) EventTime() time.Time       { return time.Time{} }
func (d datum) Watermark() time.Time       { return time.Time{} }
