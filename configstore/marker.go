package configstore

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/dispatchthrottle/throttle/policy"
)

// A Marker says which policies a store holds, so that those of another store, of an emptied one or
// of an old backup are not taken for them. Adopt makes one, and the first Apply. The zero value is
// no marker: of policies that were written past the tools, or by a plain store.
type Marker struct {
	ID     string `json:"id"`     // names the policies as they change over time
	Epoch  int64  `json:"epoch"`  // when they were last adopted, Unix milliseconds
	Serial int64  `json:"serial"` // counts Apply and Adopt; 0: a program with create=true made it
	Count  int    `json:"count"`  // permanent entries after the last Apply or Adopt
}

// maxAhead is how far ahead of the clock an epoch may be. A later one would outlast all others in
// the schedules of permit stores.
const maxAhead = 24 * time.Hour

// maxID is the length of the longest id, in bytes: each request to a permit store has it.
const maxID = 255

// ahead reports whether the epoch is later than any that a right clock has written by now.
func (m Marker) ahead(now time.Time) bool { return m.Epoch > now.Add(maxAhead).UnixMilli() }

// An Adoption says how a store is adopted. The zero value keeps the id of the store.
type Adoption struct {
	ID    string // default: the one that the store has or, if it has none, a new one
	After int64  // an epoch of the line that replicas may have followed: the new one is later
}

// Check returns why a replica with a right clock could not follow what is adopted so at now.
func (a Adoption) Check(now time.Time) error {
	if len(a.ID) > maxID {
		return fmt.Errorf("configstore: an id of %d bytes: want at most %d", len(a.ID), maxID)
	}
	if (Marker{Epoch: a.After}).ahead(now) {
		return fmt.Errorf("configstore: epoch %d (%s) is over a day ahead of this machine's clock: "+
			"correct the clock, or name an earlier epoch",
			a.After, time.UnixMilli(a.After).UTC().Format(time.RFC3339))
	}
	return nil
}

// Adopted returns the marker of a store that is adopted at now, with these entries. The error is
// what Adoption.Check returns.
func (m Marker) Adopted(a Adoption, entries []policy.Entry, now time.Time) (Marker, error) {
	if err := a.Check(now); err != nil {
		return m, err
	}
	epoch := max(now.UnixMilli(), a.After+1)
	if !m.ahead(now) { // else no replica has followed it
		epoch = max(epoch, m.Epoch+1)
	}
	return Marker{
		ID: cmp.Or(a.ID, m.ID, rand.Text()), Epoch: epoch, Serial: m.Serial + 1, Count: policy.CountPermanent(entries),
	}, nil
}

// Created returns the marker of an empty store in which a program with create=true begins. Nobody
// has said that the store is to be empty, so it replaces no policies, and a first Apply is still
// one.
func Created(now time.Time) Marker {
	return Marker{ID: rand.Text(), Epoch: now.UnixMilli()}
}

// Applied returns the marker of a store that holds entries after changes. A store without a marker
// is adopted. The error is what Check returns.
func (m Marker) Applied(
	entries []policy.Entry, changes []Change, now time.Time,
) (Marker, error) {
	if m == (Marker{}) {
		m, _ = m.Adopted(Adoption{}, entries, now) // no error without an epoch
	}
	if err := m.Check(entries, now); err != nil {
		return m, err
	}
	m.Serial++
	m.Count = policy.CountPermanent(After(entries, changes, now))
	return m, nil
}

// Check returns why policies must not be taken from a store that holds these entries at now, and
// what to do: a *policy.HeldError.
func (m Marker) Check(entries []policy.Entry, now time.Time) error {
	n := policy.CountPermanent(entries)
	switch {
	case m == (Marker{}) && n == 0:
		return &policy.HeldError{
			Fault: policy.FaultNotAdopted,
			Text: "configstore: the policy store is empty and not adopted: check its address and " +
				"prefix; if it has lost its policies, restore a backup; if it is new, set a policy, or run: " +
				"throttle-admin adopt",
		}
	case m.ahead(now):
		return &policy.HeldError{
			Fault: policy.FaultNotAdopted,
			Text: fmt.Sprintf("configstore: the policy store was adopted at %s, which is over a day ahead "+
				"of this machine's clock, and counts as not adopted: correct the clocks, and run: "+
				"throttle-admin adopt", time.UnixMilli(m.Epoch).UTC().Format(time.RFC3339)),
		}
	case n == 0 && m.Count > 0:
		return &policy.HeldError{
			Fault: policy.FaultLost,
			Text: fmt.Sprintf("configstore: the policy store has lost its policies (%d) and is not adopted "+
				"without them: restore them from a backup, or see throttle-admin doctor; throttle-admin adopt --empty "+
				"lifts all limits", m.Count),
		}
	}
	return nil
}
