package generation_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/generation"
)

func TestGenerationsFollowEachOther(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var s generation.Sequence
	s.Start(ctx)
	first := s.Current()
	require.NoError(t, first.Err())

	first.End() // a seek begins: none has replaced it yet
	require.Error(t, first.Err())
	require.Same(t, first, s.Current())
	select {
	case <-first.Replaced():
		t.Fatal("it is replaced by Next")
	default:
	}

	s.Next()
	<-first.Replaced()
	second := s.Current()
	require.NoError(t, second.Err())

	s.Next() // a rebalance: it ends the generation and starts the next at once
	require.Error(t, second.Err())
	<-second.Replaced()
	require.NoError(t, s.Current().Err())

	stop()
	require.Error(t, s.Current().Err(), "all end with the parent")
}
