package permitstest

import (
	"context"
	"errors"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/dispatch/permits"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// A faulty store handles one request wrong. It keeps one limit, with a log.
type faulty struct {
	dispatch.PermitStore
	fault string
	at    int // which request

	requests int
	now      float64
	is, was  Limit // the state now, and before the last request
	snapshot Limit // after ten requests
	log      []Version
}

func (s *faulty) Do(_ context.Context, requests []*permits.Request) {
	r := requests[0]
	s.requests++
	fault := s.fault
	if s.requests != s.at {
		fault = ""
	}
	switch fault {
	case "lost update":
		s.is = s.was
	case "rolled back, and again forward":
		defer func(is Limit) { s.is = is }(s.is)
		s.is = s.was
	case "forgotten":
		s.is = Limit{}
	case "restored", "restored, and not noticed":
		s.is, s.log = s.snapshot, append(s.log, Restored(10))
		if fault != "restored" {
			r.Allocate.Request.Carry.Seq = 0
		}
	case "call lost":
		r.Err = errors.New("lost")
		return
	case "made twice":
		s.answer(r)
	case "made twice, unlogged":
		s.answer(r)
		s.log = s.log[:len(s.log)-1]
	}
	s.answer(r)
	if s.requests == 10 {
		s.snapshot = Limit{s.is.State, maps.Clone(s.is.Subs)}
	}
	switch fault {
	case "not stored":
		s.is, s.log = s.was, s.log[:len(s.log)-1]
	case "reply lost":
		r.Err = errors.New("lost")
	case "a permit more":
		r.Allocate.Reply.N++
	case "a slot early":
		r.Allocate.Reply.Start -= 1e-5
	case "of an earlier time":
		r.Allocate.Reply.Now -= 1e-3
	}
}

func (s *faulty) answer(r *permits.Request) {
	s.now += 1e-3
	s.was = Limit{s.is.State, maps.Clone(s.is.Subs)}
	name := r.Allocate.Subscription
	state, sub, reply := schedule.Allocate(s.is.State, s.is.Subs[name], r.Allocate.Request, s.now)
	s.is = Limit{state, map[string]schedule.Sub{}}
	maps.Copy(s.is.Subs, s.was.Subs)
	s.is.Subs[name], r.Allocate.Reply = sub, reply
	s.log = append(s.log, VersionOf(state))
}

// history records 40 requests by two clients, one after the other.
func (s *faulty) history(t *testing.T) *History {
	h, carries := NewHistory(), make([]schedule.Carry, 2)
	s.now = 100
	for i := range 40 {
		r := request()
		r.Want, r.Nonce, r.Carry = 1, int64(i+1), carries[i%2]
		reply, err := h.Allocate(t.Context(), i%2, s, "k", r)
		if err == nil {
			carries[i%2] = reply.Carry
		}
	}
	return h
}

// TestHistoryOfAFaultyStore: the history of a store that is right is linearizable, even if calls
// and replies are lost. That of a store with one fault is not.
func TestHistoryOfAFaultyStore(t *testing.T) {
	for _, fault := range []string{"", "call lost", "reply lost", "restored"} {
		for _, at := range []int{1, 20, 40} {
			if fault == "restored" && at < 10 {
				continue
			}
			s := &faulty{fault: fault, at: at}
			assert.NoError(t, s.history(t).Check(map[string][]Version{"k": s.log}), "%q at %d", fault, at)
		}
	}
	t.Setenv("TMPDIR", t.TempDir())
	for _, fault := range []string{
		"lost update", "rolled back, and again forward", "forgotten", "made twice", "made twice, unlogged", "not stored",
		"restored, and not noticed", "a permit more", "a slot early", "of an earlier time",
	} {
		s := &faulty{fault: fault, at: 20}
		err := s.history(t).Check(map[string][]Version{"k": s.log})
		assert.ErrorContains(t, err, "not linearizable (Illegal)", fault)
		assert.ErrorContains(t, err, "picture for a browser: ", fault)
	}
}

// TestHistoryWithManyFailedRequests: requests that failed and were never carried out add no orders
// to try, even where one of them could have been what a wrong reply is to.
func TestHistoryWithManyFailedRequests(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := &faulty{fault: "of an earlier time", at: 40}
	h := s.history(t)
	last := h.operations[len(h.operations)-1].Input.(operation)
	for range 200 {
		r := *last.request
		h.operations = append(h.operations, porcupine.Operation{
			ClientId: 2, Input: operation{"k", &r}, Output: answer{err: errors.New("lost")}, Return: math.MaxInt64,
		})
	}
	start := time.Now()
	assert.ErrorContains(t, h.Check(map[string][]Version{"k": s.log}), "not linearizable (Illegal)")
	assert.Less(t, time.Since(start), 30*time.Second)
}

// TestHistoryKeepsRealTime: a request that had been answered when another one was sent comes before
// that one.
func TestHistoryKeepsRealTime(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := &faulty{}
	h := s.history(t)
	a, b := &h.operations[10], &h.operations[11]
	a.Call, a.Return, b.Call, b.Return = b.Call, b.Return, a.Call, a.Return
	assert.ErrorContains(t, h.Check(map[string][]Version{"k": s.log}), "not linearizable (Illegal)")
}

// TestDelayed: slots are where they were or late by the usual part of the time that passed, and
// only those that are over for a round are wasted.
func TestDelayed(t *testing.T) {
	for _, c := range []struct {
		why          string
		strict       bool
		start, past  float64 // of the schedule's reply of 10 permits, 10 ms apart
		gotN, gotAt  float64
		linearizable bool
	}{
		{"in place", false, 0.05, 0.02, 10, 0.03, true},
		{"late by half", false, 0.05, 0.02, 10, 0.04, true},
		{"late by all", false, 0.05, 0.02, 10, 0.05, true},
		{"late by more", false, 0.05, 0.02, 10, 0.051, false},
		{"early", false, 0.05, 0.02, 10, 0.029, false},
		{"at once", false, 0.05, 0.08, 10, 0, true},
		{"at once, and too early", false, 0.05, 0.04, 10, 0, false},
		{"a permit more", false, 0.05, 0.02, 11, 0.03, false},
		{"wasted early", false, 0.05, 0.02, 9, 0.04, false},
		{"two wasted", false, -0.11, 0.005, 8, -0.09, true},
		{"three wasted", false, -0.11, 0.005, 7, -0.08, false},
		{"all wasted", false, -0.11, 0.5, 0, -0.01, true},
		{"strict", true, 0.05, 0.02, 10, 0.03, true},
		{"strict, late", true, 0.05, 0.02, 10, 0.04, false},
		{"strict, wasted", true, -0.15, 0.02, 5, -0.1, false},
	} {
		r := schedule.Request{Round: 0.1, Strict: c.strict}
		want := schedule.Reply{N: 10, Gap: 0.01, Start: c.start, Now: 5}
		got := want
		got.N, got.Start, got.Now = c.gotN, c.gotAt, 5+c.past
		assert.Equal(t, c.linearizable, same(r, want, answer{reply: got, took: c.past + 0.001}), c.why)
	}
}
