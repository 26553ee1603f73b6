// Package pool is the arithmetic of sharing a limit by the number of replicas.
//
// Everything here is a pure function.
package pool
