package dispatch

import (
	"slices"

	"github.com/dispatchthrottle/throttle/policy"
)

// An owner is on whose account a subscription's messages go.
type owner struct{ group, tag string }

// id is the owner's throttling id on a topic: his tenant group, else his tag if that has a quota, else the topic's tenant.
func (o owner) id(t policy.Topic, set *policy.Set) policy.Scope {
	if o.group != "" {
		return policy.TenantScope(o.group)
	}
	if tag := policy.TagScope(o.tag); o.tag != "" {
		if _, ok := set.Quota(tag); ok {
			return tag
		}
	}
	return policy.TenantScope(t.Tenant)
}

// String is the owner's id, "" if there is none but the topic's tenant.
func (o owner) String() string {
	switch {
	case o.group != "":
		return policy.TenantScope(o.group).String()
	case o.tag != "":
		return policy.TagScope(o.tag).String()
	}
	return ""
}

// WithTenantGroup has the quota of tenant:NAME apply, whatever tag there is. Default: that of the tag, else that of the topic's tenant.
func WithTenantGroup(name string) SubscriptionOption {
	return func(s *Subscription) { s.owner.group = name }
}

// WithTag has the quota of tag:NAME apply, if there is one and no tenant group was given.
func WithTag(name string) SubscriptionOption { return func(s *Subscription) { s.owner.tag = name } }

func (o owner) validate() error {
	if o.group != "" {
		if err := policy.TenantScope(o.group).Validate(); err != nil {
			return err
		}
	}
	if o.tag != "" {
		return policy.TagScope(o.tag).Validate()
	}
	return nil
}

// mostTags bounds the tags of one handle's messages that have handles of their own.
const mostTags = 1000

// Tagged is the handle for messages that carry a tag of their own: s itself if there is no quota for it, if it is that of s, or if s has a
// tenant group; else one that waits for the same limits but for the quota, until s is closed: its own Close does nothing. It is kept, and costs a
// lookup; from the 1001st tag on it is s itself.
func (s *Subscription) Tagged(tag string) *Subscription {
	if s == nil || tag == "" || s.owner.group != "" || tag == s.owner.tag {
		return s
	}
	if s.parent != nil {
		return s.parent.Tagged(tag)
	}
	if quotas := s.queue.limiter.tags.Load(); quotas == nil || !(*quotas)[tag] {
		return s
	}
	if of, ok := s.tagged.Load(tag); ok {
		return of.(*Subscription)
	}
	q, l := s.queue, s.queue.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if of, ok := s.tagged.Load(tag); ok {
		return of.(*Subscription)
	}
	q.mu.Lock()
	open := !l.closed && slices.Contains(q.handles, s)
	last := s.backlog
	q.mu.Unlock()
	if !open || s.tags >= mostTags {
		return s
	}
	of := &Subscription{owner: owner{tag: tag}, parent: s}
	l.join(of, q.topic, q.name, last)
	s.tagged.Store(tag, of)
	s.tags++
	return of
}

// TagsLimited reports whether any tag has a quota, so that messages may wait though s itself does not: see [Subscription.Tagged]. It costs one
// atomic load.
func (s *Subscription) TagsLimited() bool {
	if s == nil || s.owner.group != "" {
		return false
	}
	quotas := s.queue.limiter.tags.Load()
	return quotas != nil && len(*quotas) > 0
}

// each calls f with the handle and those of the tags of its messages.
func (s *Subscription) each(f func(*Subscription)) {
	f(s)
	s.tagged.Range(func(_, of any) bool {
		f(of.(*Subscription))
		return true
	})
}
