package numaflowthrottle

// size returns the bytes that a message counts as: its value, its keys, and the names and values of
// its headers.
func size(value []byte, keys []string, headers map[string]string) int64 {
	n := len(value)
	for _, k := range keys {
		n += len(k)
	}
	for k, v := range headers {
		n += len(k) + len(v)
	}
	return int64(n)
}
