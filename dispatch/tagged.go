package dispatch

import "github.com/dispatchthrottle/throttle/dispatch/internal/resolve"

// maxTags bounds the tags of one handle's messages that have handles of their own.
const maxTags = 1000

// Tagged is the handle for messages that carry a tag of their own: s itself if there is no quota
// for the tag, if it is that of s, or if s has a tenant group; else a handle that waits for the
// same limits but for the quota, until s is closed: its own Close does nothing. It is kept, and
// costs a lookup; from the 1001st tag on it is s itself.
func (s *Subscription) Tagged(tag string) *Subscription {
	if s == nil || tag == "" || s.id.Owner.TenantGroup != "" || tag == s.id.Owner.Tag {
		return s
	}
	if s.parent != nil {
		return s.parent.Tagged(tag)
	}
	if quotas := s.limiter.tags.Load(); quotas == nil || !(*quotas)[tag] {
		return s
	}
	if of, ok := s.tagged.Load(tag); ok {
		return of.(*Subscription)
	}
	s.taggedMu.Lock()
	defer s.taggedMu.Unlock()
	if of, ok := s.tagged.Load(tag); ok {
		return of.(*Subscription)
	}
	if s.tags >= maxTags {
		return s
	}
	of := &Subscription{limiter: s.limiter, id: s.id, parent: s}
	of.id.Owner = resolve.Owner{Tag: tag}
	if s.limiter.engine.OpenLike(&of.handle, of.id, &s.handle) != nil { // s is closed
		return s
	}
	s.tagged.Store(tag, of)
	s.tags++
	return of
}

// TagsLimited reports whether any tag has a quota, so that messages may wait though s itself does
// not: see [Subscription.Tagged]. It costs one atomic load.
func (s *Subscription) TagsLimited() bool {
	if s == nil || s.id.Owner.TenantGroup != "" {
		return false
	}
	quotas := s.limiter.tags.Load()
	return quotas != nil && len(*quotas) > 0
}

// each calls f with the handle and those for the tags of its messages. No handle for a tag is
// added meanwhile.
func (s *Subscription) each(f func(*Subscription)) {
	s.taggedMu.Lock()
	defer s.taggedMu.Unlock()
	f(s)
	s.tagged.Range(func(_, of any) bool {
		f(of.(*Subscription))
		return true
	})
}
