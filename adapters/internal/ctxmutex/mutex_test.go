package ctxmutex_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/ctxmutex"
)

func TestLockEndsWithItsContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m ctxmutex.Mutex
		m.Init()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, m.Lock(ended, ended), "it is free")
		require.True(t, m.Locked())

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Lock(ctx, t.Context()), context.DeadlineExceeded)
		require.ErrorIs(t, m.Lock(t.Context(), ended), ctxmutex.ErrClosing)
		require.True(t, m.Locked(), "neither has taken or freed it")

		locked := make(chan error, 1)
		go func() { locked <- m.Lock(t.Context(), t.Context()) }()
		synctest.Wait()
		m.Unlock()
		require.NoError(t, <-locked)
		m.Unlock()
		require.False(t, m.Locked())
	})
}

// Callers that give up at random leave the Mutex usable, and two never hold it at once.
func TestWaitersThatGiveUpLoseNoWakeup(t *testing.T) {
	var m ctxmutex.Mutex
	m.Init()
	holders, locked := 0, 0
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 2000 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Microsecond)
				if m.Lock(ctx, t.Context()) == nil {
					holders++
					assert.Equal(t, 1, holders)
					locked++
					holders--
					m.Unlock()
				}
				cancel()
			}
		})
	}
	callers.Wait()
	assert.Positive(t, locked)
	require.NoError(t, m.Lock(t.Context(), t.Context()))
}
