package probe

// For tests.
var (
	Handshake = handshake
	ErrNoTLS  = errNoTLS
)
