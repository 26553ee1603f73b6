// Package dispatch decides when a consumer may read its next message.
//
// A [Limiter] keeps the permits of one process. Every consumer asks a [Subscription] for permits
// before it delivers messages. All subscriptions and processes share the permits of a limit
// through a [PermitStore], which allocates them in batches. So a decision is one atomic operation
// in memory.
//
// The package depends on no broker and no store: policies come from a [PolicySource], permits from
// a PermitStore.
package dispatch
