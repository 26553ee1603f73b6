package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/policy"
)

// TestLine: policies that were restored from a backup do not come into force when their revision
// has passed the newest known one, until they are adopted.
func TestLine(t *testing.T) {
	var line policy.Line
	follow := func(epoch, revision, rate int64) error {
		s := policy.Snapshot{
			Set:      policy.Single(policy.Policy{MessageRate: policy.PerSecond(rate)}),
			Identity: "a", Epoch: epoch, Revision: revision,
		}
		err := line.Follow(s)
		assert.Equal(t, err == nil, line.Known.Set == s.Set)
		line = policy.Line{Known: line.Known, Fell: line.Fell} // a restart with a cache file
		return err
	}
	assert.NoError(t, follow(1, 10, 7))
	assert.NoError(t, follow(1, 10, 7))
	assert.NoError(t, follow(1, 11, 8))
	assert.ErrorContains(t, follow(1, 5, 7), "restored from a backup")
	assert.ErrorContains(t, follow(1, 11, 7), "restored from a backup")
	assert.ErrorContains(t, follow(1, 12, 7), "restored from a backup")
	assert.NoError(t, follow(2, 6, 7), "they are adopted")
	assert.NoError(t, follow(2, 7, 9))
	assert.NoError(t, follow(2, 6, 9), "a clock was set back while a temporary policy ended")
	assert.Equal(t, int64(7), line.Known.Revision, "no schedule takes an older one")
	assert.NoError(t, follow(2, 7, 9))
	assert.NoError(t, follow(2, 8, 10))
	assert.Error(t, follow(1, 100, 7))
	assert.NoError(t, follow(2, 9, 11), "it was of another epoch")
}

// TestLinePlain: a plain snapshot is followed whatever is known, as newer than that, and any line
// that is not older follows it.
func TestLinePlain(t *testing.T) {
	snapshot := func(identity string, epoch, revision, rate int64) policy.Snapshot {
		return policy.Snapshot{
			Set:      policy.Single(policy.Policy{MessageRate: policy.PerSecond(rate)}),
			Identity: identity, Epoch: epoch, Revision: revision, Plain: identity == "file",
		}
	}
	line := policy.Line{Known: snapshot("a", 5, 10, 7)}
	at := func(epoch, revision int64) {
		t.Helper()
		assert.Equal(t, [2]int64{epoch, revision}, [2]int64{line.Known.Epoch, line.Known.Revision})
	}
	assert.NoError(t, line.Follow(snapshot("file", 4, 400, 8)))
	at(5, 11)
	assert.NoError(t, line.Follow(snapshot("file", 4, 400, 8)), "the same again")
	at(5, 11)
	assert.NoError(t, line.Follow(snapshot("file", 6, 6, 9)))
	at(6, 6)
	assert.ErrorContains(t, line.Follow(snapshot("b", 5, 100, 7)), "adopt --after 6")
	assert.NoError(t, line.Follow(snapshot("b", 7, 1, 7)))
	assert.ErrorContains(t, line.Follow(snapshot("", 0, 100, 7)), "has no marker, and the last policies were")
	assert.ErrorContains(t, line.Follow(snapshot("c", 8, 1, 7)), "adopt --id b")
	at(7, 1)

	line = policy.Line{Known: snapshot("", 0, 10, 7)}
	assert.NoError(t, line.Follow(snapshot("", 0, 11, 8)))
	assert.ErrorContains(t, line.Follow(snapshot("", 0, 5, 9)), "restored from a backup")
	assert.NoError(t, line.Follow(snapshot("a", 3, 1, 9)), "the first Apply gives it a marker")
}

// TestLineOfSerials: the serial shows a restored store whose revision has passed the known one
// before anyone looked, and policies that were removed past the tools.
func TestLineOfSerials(t *testing.T) {
	snapshot := func(serial, revision, rate int64) policy.Snapshot {
		return policy.Snapshot{
			Set:      policy.Single(policy.Policy{MessageRate: policy.PerSecond(rate)}),
			Identity: "a", Epoch: 1, Serial: serial, Revision: revision,
		}
	}
	empty := func(serial int64) policy.Snapshot {
		s := snapshot(serial, 300, 1)
		s.Set, _ = policy.NewSet(nil)
		return s
	}
	var line policy.Line
	assert.NoError(t, line.Follow(snapshot(5, 10, 7)))
	assert.ErrorContains(t, line.Follow(snapshot(4, 50, 9)), "restored from a backup")
	assert.ErrorContains(t, line.Follow(snapshot(5, 51, 9)), "restored from a backup", "another was set there")
	assert.NoError(t, line.Follow(snapshot(4, 52, 7)), "the policies are the same")
	assert.NoError(t, line.Follow(snapshot(5, 53, 8)))
	assert.NoError(t, line.Follow(snapshot(5, 54, 9)), "an edit by hand")
	assert.ErrorContains(t, line.Follow(empty(5)), "has lost its policies (1)")
	assert.NoError(t, line.Follow(snapshot(5, 201, 9)), "they are back")
	assert.NoError(t, line.Follow(empty(6)), "they were removed by Apply")

	line = policy.Line{}
	assert.NoError(t, line.Follow(empty(0)), "a new store")
	assert.NoError(t, line.Follow(snapshot(0, 300, 7)), "a key was written by hand")
	assert.ErrorContains(t, line.Follow(empty(0)), "and nobody has emptied it; the last policies were 1")
	assert.NoError(t, line.Follow(empty(1)))

	uncounted := func(s policy.Snapshot) policy.Snapshot {
		s.Epoch = 0
		return s
	}
	line = policy.Line{}
	assert.NoError(t, line.Follow(uncounted(snapshot(0, 10, 7))))
	assert.NoError(t, line.Follow(uncounted(empty(0))), "a source that does not count")
}

// TestLineOfNewStore: a store that a program has created replaces no policies, whatever they were.
func TestLineOfNewStore(t *testing.T) {
	created := policy.Snapshot{Identity: "new", Epoch: 9, Revision: 1}
	created.Set, _ = policy.NewSet(nil)
	for _, known := range []policy.Snapshot{{Revision: 7}, {Identity: "file", Epoch: 5, Plain: true}} {
		known.Set = policy.Single(policy.Policy{MessageRate: policy.PerSecond(7)})
		line := policy.Line{Known: known}
		assert.ErrorContains(t, line.Follow(created), "nobody has emptied it", known.Identity)
		assert.Equal(t, known, line.Known)
		adopted := created
		adopted.Epoch, adopted.Serial = 10, 1
		assert.NoError(t, line.Follow(adopted))
	}
}

// TestLineClockBehind: a clock that is set back across the end of a temporary policy, or that of
// the machine on which a replica starts again, brings nothing back, and later changes are followed.
func TestLineClockBehind(t *testing.T) {
	rate := func(n int64) policy.Entry {
		return policy.Entry{Settings: policy.Policy{MessageRate: policy.PerSecond(n)}}
	}
	paused := policy.Entry{
		Settings: policy.Policy{Paused: new(true)}, Temporary: true, Field: "paused", Expires: time.Now().UTC(),
	}
	snapshot := func(serial, revision int64, entries ...policy.Entry) policy.Snapshot {
		set, err := policy.NewSet(entries)
		assert.NoError(t, err)
		return policy.Snapshot{Set: set, Identity: "a", Epoch: 1, Serial: serial, Revision: revision}
	}
	for _, restarted := range []bool{false, true} {
		var line policy.Line
		assert.NoError(t, line.Follow(snapshot(5, 5000, rate(7), paused)))
		ended := snapshot(5, 5001, rate(7))
		assert.NoError(t, line.Follow(ended))
		if restarted {
			line = policy.Line{Known: line.Known, Fell: line.Fell}
		}
		assert.NoError(t, line.Follow(snapshot(5, 5000, rate(7), paused)))
		assert.Equal(t, ended, line.Known)
		assert.NoError(t, line.Follow(snapshot(6, 6000, rate(8), paused)), "the next change")
		assert.ErrorContains(t, line.Follow(snapshot(5, 6500, rate(7), paused)), "restored from a backup")
		assert.ErrorContains(t, line.Follow(snapshot(6, 5900, rate(9), paused)), "restored from a backup")
	}
}

// TestLineKeepsValidSettings: entries that cannot be read keep what was known of them, also when
// they end.
func TestLineKeepsValidSettings(t *testing.T) {
	known := []policy.Entry{{Settings: policy.Policy{MessageRate: policy.PerSecond(7)}}, {
		Settings: policy.Policy{Paused: new(true)}, Temporary: true, Field: "paused",
		Expires: time.Now().Add(time.Hour).UTC(),
	}}
	unreadable := []policy.Entry{
		{Settings: policy.Policy{}, Err: assert.AnError},
		{Settings: policy.Policy{}, Temporary: true, Field: "paused", Err: assert.AnError},
		{Scope: policy.TenantScope("new"), Settings: policy.Policy{}, Err: assert.AnError},
	}
	snapshot := func(revision int64, entries []policy.Entry) policy.Snapshot {
		set, _ := policy.NewSet(entries)
		return policy.Snapshot{Set: set, Identity: "a", Epoch: 1, Revision: revision}
	}
	var line policy.Line
	assert.NoError(t, line.Follow(snapshot(1, known)))
	assert.NoError(t, line.Follow(snapshot(2, unreadable)))
	found := 0
	for _, e := range line.Known.Set.Entries() {
		assert.Error(t, e.Err)
		for _, k := range known {
			if k.Scope == e.Scope && k.Field == e.Field {
				assert.Equal(t, k.Settings, e.Settings)
				assert.Equal(t, k.Expires, e.Expires)
				found++
			}
		}
	}
	assert.Equal(t, len(known), found)
}
