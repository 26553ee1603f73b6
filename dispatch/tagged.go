package dispatch

import (
	"iter"

	"github.com/dispatchthrottle/throttle/dispatch/internal/engine"
	"github.com/dispatchthrottle/throttle/dispatch/internal/resolve"
)

// maxTags bounds the handles for tags of one handle.
const maxTags = 1000

// Tagged returns the handle for messages with a tag of their own. It is s itself if the tag has no
// quota, if it is the tag of s, or if s has a tenant group. Otherwise it is a handle with the
// limits of s, but with the quota of the tag. That handle is kept until s is closed; its own Close
// does nothing. A call costs a lookup. From the 1001st tag on, the handle is s itself.
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
	if sub, ok := s.tagged.Load(tag); ok {
		return sub.(*Subscription)
	}
	s.taggedMu.Lock()
	defer s.taggedMu.Unlock()
	if sub, ok := s.tagged.Load(tag); ok {
		return sub.(*Subscription)
	}
	if s.tags >= maxTags {
		return s
	}
	sub := &Subscription{limiter: s.limiter, id: s.id, parent: s}
	sub.id.Owner = resolve.Owner{Tag: tag}
	if s.limiter.engine.OpenLike(&sub.handle, sub.id, &s.handle) != nil { // s is closed
		return s
	}
	s.tagged.Store(tag, sub)
	s.tags++
	return sub
}

// TagsLimited reports whether any tag has a quota, so that tagged messages may wait although s
// does not: see [Subscription.Tagged]. It costs one atomic load.
func (s *Subscription) TagsLimited() bool {
	if s == nil || s.id.Owner.TenantGroup != "" {
		return false
	}
	quotas := s.limiter.tags.Load()
	return quotas != nil && len(*quotas) > 0
}

// handles are s's own and those for tags. taggedMu is held.
func (s *Subscription) handles() iter.Seq[*engine.Handle] {
	return func(yield func(*engine.Handle) bool) {
		if !yield(&s.handle) {
			return
		}
		s.tagged.Range(func(_, sub any) bool { return yield(&sub.(*Subscription).handle) })
	}
}
