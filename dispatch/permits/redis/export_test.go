package redispermits

// ParseState reads the field l of a limit's hash.
var ParseState = parseState
