// Package pool is the arithmetic of sharing a limit without a schedule: by the number of
// replicas, and over worker groups.
//
//   - [Heartbeat] and [Leave] keep the membership of a pool of replicas, and so its size; a
//     [Lease] is what one replica holds of it.
//   - A [Division] is the permits of a limit divided over worker groups, which may steal what
//     others leave.
//
// Everything here is a pure function of a state and the present time. States are small and go
// through JSON unchanged; a permit store keeps one under a key and replaces it in one atomic
// step. Times are seconds, float64: a permit store passes its own clock, a replica its own.
package pool
