// Package dispatch decides when a consumer may read its next message.
//
// A [Limiter] keeps the permits of one process. Every reader asks a [Subscription]
// for permits before it hands messages on; the permits of a limit are shared by all
// subscriptions and all processes through a [PermitStore], allocated a batch at a time, so that
// a decision is one atomic operation in memory.
//
// The package knows neither brokers nor stores: policies come from a [PolicySource],
// permits from a PermitStore.
package dispatch
