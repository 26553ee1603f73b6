// Package policy says what is allowed: it parses topics, scopes and rates, validates policies and
// quotas, and resolves what the policies of several scopes come to for one subscription of a topic.
//
// Every setting of a policy, of a quota and of the cluster's settings for quotas is one row of a
// table in fields.go. Parsing, validation, inheritance, help, the JSON Schema and
// docs/reference/policy.md follow from that table.
//
// The values are plain data: the package does no I/O, reads no clock, and imports only the
// standard library.
package policy

//go:generate go test . -run TestReferenceIsCurrent -update
