package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// A versionView is what version prints.
type versionView struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisVersion() versionView {
	return versionView{dispatch.Version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
}

func (v versionView) String() string {
	return fmt.Sprintf("throttle-admin %s, %s %s", v.Version, v.Go, v.Platform)
}

func newVersionCommand(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Print the version of this program from its build info; a working copy's is
"(devel)". The version of each replica is in its status record: throttle-admin explain TOPIC -o
json`,
		Example: `  throttle-admin version
  throttle-admin version -o json`,
		Args: Args(),
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			return a.Print(v, func(w *strings.Builder) { fmt.Fprintln(w, v) })
		},
	}
}
