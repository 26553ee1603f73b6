package quotas

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/change"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/policy"
)

func newQuotaSettingsCommand(a *cli.App) *cobra.Command {
	var f change.SetFlags
	var clear bool
	const section = policy.QuotaSettingsSection
	cmd := &cobra.Command{
		Use:   "settings [FIELD=VALUE...]",
		Short: "Show or set the cluster's settings for quotas",
		Long: `Show or set the cluster's settings for quotas, which the ratekeeper applies. FIELD=
unsets a field. Without arguments, show the settings.

` + change.FieldHelp(section),
		Example: `  throttle-admin quota settings
  throttle-admin quota settings capacity=100MiB zones=a,b ignoreZones=0
  throttle-admin quota settings capacity=50MiB --for 2h
  throttle-admin quota settings mode= --dry-run`,
		ValidArgsFunction: change.CompleteFields(section, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, unset, err := change.ParseFields(section, args)
			ttl, ttlErr := f.TTL(cmd, unset...)
			faults := []error{err, ttlErr}
			if clear && len(args) > 0 {
				faults = append(faults, errors.New("--clear: want it without FIELD=VALUE"))
			}
			if err := errors.Join(faults...); err != nil {
				return cli.Usage(err)
			}
			if len(args) == 0 && !clear {
				return showSettings(a, cmd)
			}
			return change.Run(a, cmd, f.Flags, change.Plan{
				Review:   "quota settings",
				Removing: clear,
				Make: func(s configstore.Snapshot) ([]configstore.Change, error) {
					cluster := policy.ClusterScope()
					if clear {
						return s.Remove(section, cluster), nil
					}
					if err := cli.Readable(s, section, cluster); err != nil {
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

func showSettings(a *cli.App, cmd *cobra.Command) error {
	s, err := a.Policies(cmd.Context())
	if err != nil {
		return err
	}
	if err := cli.Readable(s, policy.QuotaSettingsSection, policy.ClusterScope()); err != nil {
		return err
	}
	set, _ := policy.NewSet(s.Entries) // usable without its invalid entries
	inForce := set.QuotaSettings()
	views := []settingView{}
	for _, f := range policy.QuotaSettingsSection.Fields() {
		v := settingView{Field: f.Name, Value: policy.Text(inForce, f.Name), Default: true}
		for _, e := range s.Entries {
			if e.Section() == policy.QuotaSettingsSection && policy.Text(e.Settings, f.Name) != "" {
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
