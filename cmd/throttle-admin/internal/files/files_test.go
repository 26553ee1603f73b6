package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/clitest"
	"github.com/dispatchthrottle/throttle/tests/services"
)

func TestMoreThanEtcdTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("18,000 policies take nearly cli.StoreTimeout with the race detector")
	}
	store := "etcd://" + services.Etcd(t).Endpoint + "/" + services.Name(t)
	for _, c := range []struct {
		n                  int
		subscription, want string
	}{
		{18_000, "", "etcdserver: request is too large"},
		// Each ä is escaped twice, to ten bytes:
		{3000, strings.Repeat("ä", 100), "trying to send message larger than max"},
	} {
		policies := make([]string, c.n)
		for i := range policies {
			policies[i] = fmt.Sprintf(`{"scope":"kafka://a/b/t%d","messageRate":1}`, i)
			if c.subscription != "" {
				const form = `{"scope":"kafka://a/b/t","subscription":"%s%d","messageRate":1}`
				policies[i] = fmt.Sprintf(form, c.subscription, i)
			}
		}
		file := filepath.Join(t.TempDir(), "many.json")
		text := `{"schema":2,"policies":[` + strings.Join(policies, ",") + "]}"
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands},
			"apply", "-f", file, "--policies", store)
		assert.Equal(t, cli.ExitFailed, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, c.want)
		assert.Contains(t, errs, "\nhint: etcd limits a change's size: change fewer policies ")
	}
}
