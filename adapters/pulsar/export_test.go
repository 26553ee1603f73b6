package pulsarthrottle

// What tells the client's types apart.
var (
	IsZeroQueue = isZeroQueue
	HasPattern  = hasPattern
)
