package change

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

// A SettingsCommand shows and sets the cluster's settings of a section.
type SettingsCommand struct {
	Section policy.Section
	Parent  string // the command that it belongs to
	Of      string // what the settings are for
	Example string
	InForce func(*policy.Set) policy.Settings // with defaults
}

// New returns the command.
func (c SettingsCommand) New(a *cli.App) *cobra.Command {
	var f SetFlags
	var clear, reset bool
	cmd := &cobra.Command{
		Use:   "settings [FIELD=VALUE...]",
		Short: "Show or set the cluster's settings for " + c.Of,
		Long: "Show or set the cluster's settings for " + c.Of + `. FIELD= unsets a field. Without
arguments, show the settings.

` + FieldHelp(c.Section),
		Example:           c.Example,
		ValidArgsFunction: CompleteFields(c.Section, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, unset, err := ParseFields(c.Section, args)
			ttl, ttlErr := f.TTL(cmd, unset...)
			faults := []error{err, ttlErr}
			if clear && len(args) > 0 {
				faults = append(faults, errors.New("--clear: want it without FIELD=VALUE"))
			}
			if reset && (clear || len(args) > 0) {
				faults = append(faults, errors.New("--reset: want it without --clear and FIELD=VALUE"))
			}
			if err := errors.Join(faults...); err != nil {
				return cli.Usage(err)
			}
			if len(args) == 0 && !clear && !reset {
				return c.show(a, cmd)
			}
			return Run(a, cmd, f.Flags, Plan{
				Review:   c.Parent + " settings",
				Removing: clear,
				Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
					cluster := policy.ClusterScope()
					if clear {
						return s.Remove(c.Section, cluster), nil
					}
					if reset {
						return Reset(s, c.Section, cluster)
					}
					if err := cli.Readable(s, c.Section, cluster); err != nil {
						return nil, err
					}
					if ttl != 0 {
						return s.SetFor(cluster, settings, ttl), nil
					}
					return s.SetAndUnset(cluster, settings, unset...), nil
				},
			})
		},
	}
	cmd.Flags().StringVar(&f.For, "for", "",
		"set temporarily, for a duration such as 2h; then the permanent value applies again")
	cmd.Flags().BoolVar(&clear, "clear", false, "remove all settings")
	cmd.Flags().BoolVar(&reset, "reset", false, "end temporary values at once")
	f.Flags.Add(cmd)
	return cmd
}

// A settingView is one setting.
type settingView struct {
	Field   string    `json:"field"`
	Value   string    `json:"value"`
	Default bool      `json:"default,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // of a temporary value
}

func (c SettingsCommand) show(a *cli.App, cmd *cobra.Command) error {
	s, err := a.Policies(cmd.Context())
	if err != nil {
		return err
	}
	if err := cli.Readable(s, c.Section, policy.ClusterScope()); err != nil {
		return err
	}
	set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
	inForce := c.InForce(set)
	views := []settingView{}
	for _, f := range c.Section.Fields() {
		v := settingView{Field: f.Name, Value: policy.Text(inForce, f.Name), Default: true}
		for _, e := range s.Entries {
			if e.Section() == c.Section && policy.Text(e.Settings, f.Name) != "" {
				v.Default, v.Expires = false, e.Expires // the temporary entry comes last
			}
		}
		views = append(views, v)
	}
	now := time.Now()
	return a.Print(views, func(w *strings.Builder) {
		var rows [][]string
		for _, v := range views {
			row := []string{v.Field, output.Dash(v.Value), "default", "-"}
			if !v.Default {
				row[2], row[3] = "set", output.Expires(v.Expires, now)
			}
			rows = append(rows, row)
		}
		output.Table(w, []string{"FIELD", "VALUE", "FROM", "EXPIRES"}, rows)
		fmt.Fprintf(w, "revision %d\n", s.Revision)
	})
}
