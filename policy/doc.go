// Package policy says what is allowed: it parses topics, scopes and rates, validates policies,
// and resolves what the policies of several scopes come to for one subscription of one topic.
//
// Its values are plain data: it does no I/O, reads no clock, and imports only the standard library.
package policy
