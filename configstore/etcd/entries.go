package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/policy"
)

const (
	configPart    = "/config" // after the prefix of all keys
	temporaryPart = "/temporary"
	markerPart    = "/marker"
)

// parts are where entries are, after the prefix.
func parts() (all []string) {
	for _, section := range policy.Sections() {
		all = append(all, "/"+section.String()+"/")
	}
	return append(all, temporaryPart+"/")
}

// parseMarker reads a marker. One that cannot be read is none.
func parseMarker(value []byte) (m configstore.Marker) {
	if json.Unmarshal(value, &m) != nil || m.ID == "" || m.Epoch <= 0 || m.Serial < 0 || m.Count < 0 {
		return configstore.Marker{}
	}
	return m
}

type temporaryJSON struct {
	Expires  time.Time       `json:"expires"`
	Settings json.RawMessage `json:"settings"`
}

// entry reads what is stored at a revision of etcd's; if it cannot be read, Err says why.
func (s *Store) entry(key string, value []byte, revision int64) policy.Entry {
	k, err := s.parseKey(key)
	e := policy.Entry{
		Scope: k.Scope, Settings: k.Section.Zero(), Temporary: k.Field != "", Field: k.Field,
		Revision: revision * steps,
	}
	if err == nil && e.Temporary {
		var t temporaryJSON
		if err = json.Unmarshal(value, &t); err == nil {
			e.Expires, value = t.Expires, t.Settings
		}
	}
	var settings policy.Settings
	if err == nil {
		settings, err = policy.Unmarshal(k.Section, value)
	}
	if err == nil {
		err = settings.Validate(e.Scope)
	}
	if err == nil && e.Temporary && !slices.Equal(policy.Fields(settings), []string{e.Field}) {
		err = &policy.FieldError{
			Field: e.Field, Value: string(value),
			Reason: "not the only field of the temporary entry",
		}
	}
	if err != nil {
		e.Err = fmt.Errorf("configstore/etcd: %s: %w", printable.Line(key), err)
	} else {
		e.Settings = settings
	}
	return e
}

func (s *Store) key(k configstore.Key) string {
	permanent := "/" + k.Section.String() + "/" + url.PathEscape(k.Scope.String())
	switch {
	case k.Scope.Kind == policy.UnreadableKind:
		return s.prefix + "/" + k.Scope.Pattern
	case k.Field != "":
		return s.prefix + temporaryPart + permanent + "/" + k.Field
	}
	return s.prefix + permanent
}

// parseKey is the inverse of key. A key that key would not write gets an unreadable scope, with
// which it can still be deleted.
func (s *Store) parseKey(key string) (configstore.Key, error) {
	path := strings.TrimPrefix(key, s.prefix+"/")
	section, rest, _ := strings.Cut(path, "/")
	var k configstore.Key
	temporary := "/"+section == temporaryPart
	if temporary {
		section, rest, _ = strings.Cut(rest, "/")
		rest, k.Field, _ = strings.Cut(rest, "/")
	}
	var known bool
	k.Section, known = policy.ParseSection(section)
	text, err := url.PathUnescape(rest)
	if err == nil {
		k.Scope, err = policy.ParseScope(text)
	}
	if err == nil && (!known || s.key(k) != key || temporary && !isField(k)) {
		err = errors.New("not a key that this version writes")
	}
	if err != nil {
		unreadable := policy.Scope{Kind: policy.UnreadableKind, Pattern: path}
		return configstore.Key{Scope: unreadable}, err
	}
	return k, nil
}

func isField(k configstore.Key) bool {
	return slices.ContainsFunc(k.Section.Fields(), func(f policy.Field) bool {
		return f.Name == k.Field
	})
}
