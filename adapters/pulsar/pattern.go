package pulsarthrottle

import (
	"reflect"
	"regexp"

	"github.com/apache/pulsar-client-go/pulsar"
)

// isPattern reports whether options open a consumer of the topics that match a pattern.
func isPattern(options pulsar.ConsumerOptions) bool {
	return options.Topic == "" && len(options.Topics) == 0 && options.TopicsPattern != ""
}

// hasPattern reports whether c is the client's consumer of a pattern, whose type is not exported.
// It is the only consumer of the client with a regular expression: TestClientTypes fails if that
// changes.
func hasPattern(c pulsar.Consumer) bool {
	t := reflect.TypeOf(c)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	for field := range t.Fields() {
		if field.Type == reflect.TypeFor[*regexp.Regexp]() {
			return true
		}
	}
	return false
}
