package dispatch

import (
	"cmp"
	"runtime/debug"
	"sync"
)

// module is the path of this library's module.
const module = "github.com/dispatchthrottle/throttle"

// Version returns the version of this library in the running program, as Go's build info has it:
// v1.2.3, a pseudo-version, or (devel) for a build of a working copy without version control.
// Replicas publish it in their status records.
func Version() string { return version() }

var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknownVersion
	}
	return versionOf(info)
})

const unknownVersion = "(devel)"

// versionOf returns the version of this library's module in a program.
func versionOf(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(m.Version, unknownVersion)
	}
	return unknownVersion
}
