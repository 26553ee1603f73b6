package pulsarthrottle

// The functions that tell the client's types apart.
var (
	IsZeroQueue = isZeroQueue
	HasPattern  = hasPattern
)
