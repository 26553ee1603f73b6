package pool

// visitTime is the time between two visits to one record, in seconds, by all members together. A
// permit store takes a millisecond or two for each; members that come at the same time repeat
// theirs.
const visitTime = 0.004

// Spacing returns the time from one visit of a member to its next, in seconds, that keeps the
// visits of all members apart.
func Spacing(members int) float64 { return visitTime * float64(members) }
