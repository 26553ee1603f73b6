package dispatch

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVersionOf(t *testing.T) {
	app := debug.Module{Path: "example.com/app", Version: "v7.0.0"}
	for _, c := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"this module's own program", debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}}, "v1.2.3"},
		{"a working copy", debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}, "(devel)"},
		{"a test", debug.BuildInfo{Main: debug.Module{Path: module}}, "(devel)"},
		{"another program", debug.BuildInfo{Main: app, Deps: []*debug.Module{{Path: module, Version: "v1.2.3"}}},
			"v1.2.3"},
		{"a fork", debug.BuildInfo{Main: app, Deps: []*debug.Module{
			{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.2.4"}},
		}}, "v1.2.4"},
		{"a local copy", debug.BuildInfo{Main: app, Deps: []*debug.Module{
			{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "../throttle"}},
		}}, "(devel)"},
		{"no modules", debug.BuildInfo{}, "(devel)"},
	} {
		assert.Equal(t, c.want, versionOf(&c.info), c.name)
	}
	assert.NotEmpty(t, Version())
}
