package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// given returns the deliveries of entries of one partition, one a nanosecond.
func given(from int64, entries ...int64) (all []Delivery) {
	for i, e := range entries {
		all = append(all, Delivery{At: from + int64(i), Position: Position{Entry: e}, ID: string(rune('a' + e))})
	}
	return all
}

func TestJournal(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.journal")
	none, err := Read(name)
	require.NoError(t, err)
	assert.Empty(t, none)
	want := Session{Build: "one", Deliveries: []Delivery{{5, 3, Position{1, 2}, "x-1"}, {6, 0, Position{0, 9}, "y"}}}
	w, err := Open(name)
	require.NoError(t, err)
	require.NoError(t, w.Begin("one"))
	for _, d := range want.Deliveries {
		require.NoError(t, w.Delivered(d))
	}
	require.NoError(t, w.Close())
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString("7 0 0 1")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	got, err := Read(name)
	require.NoError(t, err)
	require.Len(t, got, 1)
	want.Start = got[0].Start
	assert.Equal(t, want, got[0], "a line that is being written is not read")
	_, err = parse(strings.NewReader("session 1 one\n1 0 0\n"))
	require.ErrorContains(t, err, "line 2")
	_, err = parse(strings.NewReader("1 0 0 0 a\n"))
	require.ErrorContains(t, err, "want a session")
	_, err = parse(strings.NewReader("session 1 one\n1 0 0 x a\n"))
	require.ErrorContains(t, err, `parsing "x"`)
}

func TestLost(t *testing.T) {
	v := Subscription{
		Produced: []string{"a", "b", "c"}, Sessions: []Session{{Deliveries: given(1, 0)}, {Deliveries: given(5, 2)}},
	}.Check()
	assert.Equal(t, []string{"b"}, v.Lost)
	assert.Equal(t, 3, v.Produced)
	assert.Equal(t, 2, v.Deliveries)
	assert.Equal(t, int64(4), v.Silence)
	assert.Equal(t, int64(5), v.SilenceBefore)
}

func TestReordered(t *testing.T) {
	restart := []Rewind{{At: 3}}
	for _, c := range []struct {
		name    string
		entries []int64
		rewinds []Rewind
		want    int
	}{
		{"in order", []int64{1, 2, 3}, nil, 0},
		{"others read between", []int64{1, 2, 7, 8}, nil, 0},
		{"given again from the last commit", []int64{1, 2, 3, 2, 3, 4}, nil, 0},
		{"two swapped", []int64{1, 3, 2, 4}, nil, 1},
		{"one late by several", []int64{1, 3, 4, 5, 2}, nil, 1},
		{"moved back", []int64{5, 6, 1, 2, 6, 7}, restart, 0},
		{"moved back later", []int64{5, 6, 7, 1, 2}, restart, 0},
		{"moved back too early", []int64{5, 1, 2}, restart, 1},
		{"moved back twice", []int64{5, 6, 3, 4, 1}, restart, 1},
		{"swapped after a move", []int64{5, 6, 1, 3, 2}, restart, 1},
	} {
		got, _ := reordered(Session{Deliveries: given(1, c.entries...)}, c.rewinds, nil)
		assert.Len(t, got, c.want, c.name)
	}
	other := given(1, 2, 1)
	other[1].Partition = 1
	faults, _ := reordered(Session{Deliveries: other}, nil, nil)
	assert.Empty(t, faults, "partitions have no common order")
	late := Session{Start: 4, Deliveries: given(5, 5, 1)}
	faults, _ = reordered(late, restart, nil)
	assert.Len(t, faults, 1, "a move before the session is none of its own")
}

// TestHandover: a session takes the partition over between its deliveries at 10 and at 20, from one
// that was given 3 and then stopped: it is given 6 and 7, and then 4 and 5, which the other never
// was.
func TestHandover(t *testing.T) {
	at := func(at int64) *handover {
		return &handover{sessions: []Session{{Start: 1, Deliveries: given(at, 3)}}}
	}
	for _, c := range []struct {
		name        string
		entries     []int64 // from 20 on
		from        *handover
		want, holes int
	}{
		{"hole filled", []int64{6, 7, 4, 5, 8}, at(15), 0, 1},
		{"filled, and given again", []int64{6, 7, 4, 5, 6, 7, 8}, at(15), 0, 1},
		{"no failover subscription", []int64{6, 7, 4, 5, 8}, nil, 2, 0},
		{"the other had it before", []int64{6, 7, 4, 5, 8}, at(9), 2, 0},
		{"the other had it after", []int64{6, 7, 4, 5, 8}, at(20), 2, 0},
		{"another one began", []int64{6, 7, 4, 5, 8}, &handover{sessions: []Session{{Start: 15}}}, 0, 1},
		{"another one left", []int64{6, 7, 4, 5, 8}, &handover{left: []int64{15}}, 0, 1},
		{"another one left before", []int64{6, 7, 4, 5, 8}, &handover{left: []int64{5, 25}}, 2, 0},
		{"too late", []int64{6, 7, 8, 9, 10, 11, 12, 13, 14, 4}, at(15), 1, 0},
		{"twice", []int64{6, 7, 5, 4, 8}, at(15), 1, 1},
		{"swapped in the hole", []int64{7, 4, 6, 5, 8}, at(15), 1, 1},
		{"swapped after the hole", []int64{6, 7, 4, 5, 9, 8}, at(15), 1, 1},
		{"swapped without a hole", []int64{6, 8, 7, 9}, at(15), 1, 0},
	} {
		s := Session{Start: 1, Deliveries: append(given(9, 1, 2), given(20, c.entries...)...)}
		faults, filled := reordered(s, nil, c.from)
		assert.Len(t, faults, c.want, c.name)
		assert.Equal(t, c.holes, filled, c.name)
	}
	began := Session{Start: 1, Deliveries: given(20, 6, 7, 4, 5, 9, 8)}
	faults, filled := reordered(began, nil, &handover{})
	assert.Len(t, faults, 1, "the session began with the partition, and then swapped two")
	assert.Equal(t, 1, filled)
}

func TestAgain(t *testing.T) {
	seek := []Rewind{{At: 5, To: map[int]Position{0: {Entry: 2}}}}
	all := append(given(1, 1, 2, 3), given(5, 1, 2, 3, 3, 4)...)
	others, bySeek := again(all, seek)
	assert.Equal(t, 2, others, "1 is before the seek, and 3 comes twice after it")
	assert.Equal(t, 2, bySeek)
	others, bySeek = again(all, []Rewind{{At: 5}})
	assert.Equal(t, 4, others)
	assert.Zero(t, bySeek)
}

func TestHighest(t *testing.T) {
	const s = int64(time.Second)
	at := []int64{0, s / 2, s - 1, s, 3 * s, 3*s + 1, 3*s + 2}
	always := []Rate{{Interval{0, 10 * s}, 4}}
	regular, cut := Highest(at, always, nil)
	assert.Equal(t, Second{End: s - 1, N: 3, PerSecond: 4}, regular, "an interval does not include its start")
	assert.Zero(t, cut)
	assert.Equal(t, 75, regular.Percent())

	lowered := []Rate{{Interval{0, 2 * s}, 4}, {Interval{s, 10 * s}, 2}}
	regular, cut = Highest(at, lowered, []Interval{{2 * s, 4 * s}})
	assert.Equal(t, Second{End: s - 1, N: 3, PerSecond: 4}, regular)
	assert.Equal(t, Second{End: 3*s + 2, N: 3, PerSecond: 4}, cut, "the old rate may still be in force at 2 s")
	_, cut = Highest(at, lowered, []Interval{{3 * s, 4 * s}})
	assert.Equal(t, 2, cut.PerSecond)
}
