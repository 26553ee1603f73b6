package main

import (
	"slices"
	"strings"
)

// asPublished returns the arguments with Pulsar's spellings brought into the order and form that the flag parser
// reads: "namespaces NAMESPACE VERB", and long options with a single dash.
func asPublished(args []string) []string {
	args = slices.Clone(args)
	at := slices.Index(args, "namespaces")
	if at < 0 {
		return args
	}
	if rest := args[at+1:]; len(rest) > 1 && strings.Contains(rest[0], "/") && strings.HasSuffix(rest[1], "-rate") {
		rest[0], rest[1] = rest[1], rest[0]
	}
	for i := at; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		long, ok := singleDash[name]
		switch {
		case ok && hasValue:
			args[i] = long + "=" + value
		case ok:
			args[i] = long
		}
	}
	return args
}

var singleDash = map[string]string{"-md": "--msg-dispatch-rate", "-bd": "--byte-dispatch-rate", "-dt": "--dispatch-rate-period"}
