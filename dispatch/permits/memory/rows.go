package memory

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"
)

// rows are the rows that belong to a value, by name.
type rows struct {
	text    map[string][]byte
	expires float64
}

// SetRows replaces rows that belong to the value under key.
func (s *Store) SetRows(
	_ context.Context, key string, head []byte, ttl time.Duration, set map[string][]byte,
) (done bool, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if !bytes.Equal(head, s.values[key].at(now).Text()) {
		return false, nil
	}
	r := s.rows[key]
	if r == nil || now > r.expires {
		r = &rows{text: map[string][]byte{}}
		s.rows[key] = r
	}
	r.expires = now + ttl.Seconds()
	for name, text := range set {
		if len(text) == 0 {
			delete(r.text, name)
		} else {
			r.text[name] = slices.Clone(text)
		}
	}
	return true, nil
}

// Rows returns rows that belong to the value under key.
func (s *Store) Rows(_ context.Context, key string, names []string) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make([][]byte, len(names))
	if r := s.rows[key]; r != nil && s.now() <= r.expires {
		for i, name := range names {
			found[i] = r.text[name]
		}
	}
	return found, nil
}

// RowNames returns the names of the rows that belong to the value under key.
func (s *Store) RowNames(_ context.Context, key string) (names []string, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rows[key]; r != nil && s.now() <= r.expires {
		names = slices.Collect(maps.Keys(r.text))
	}
	return names, nil
}
