// Package pool is the arithmetic of sharing a limit without a line of allocations: by the number
// of replicas, over groups.
//
//   - [Meet] and [Leave] keep the head count of a pool of replicas; a [Lease] is what one
//     replica holds of it, and [Share] what that comes to in permits.
//   - [Groups] are the permits of one period, divided over groups that may steal what others leave.
//
// Everything here is a pure function of a state and the present time. States are small and
// go through JSON unchanged; a permit store keeps one under a key and replaces it in one atomic step.
// Times are seconds, float64: a permit store passes its store's clock, a replica its own.
package pool
