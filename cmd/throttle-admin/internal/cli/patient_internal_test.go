package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPatient(t *testing.T) {
	for text, want := range map[string]string{
		"redis://a:1":               "redis://a:1?timeout=2s",
		"etcd://a:1/p?ca=b":         "etcd://a:1/p?ca=b&timeout=2s",
		"redis://a:1?timeout=300ms": "redis://a:1?timeout=300ms",
		"redis://a:1?%":             "redis://a:1?%", // is refused when it is opened
	} {
		assert.Equal(t, want, patient(text))
	}
}
