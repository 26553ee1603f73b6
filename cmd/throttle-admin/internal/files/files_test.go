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
	endpoint := services.Etcd(t).Endpoint
	for n, want := range map[int]string{
		400: "etcdserver: request is too large", 600: "trying to send message larger than max",
	} {
		policies := make([]string, n)
		for i := range policies { // each ä is escaped twice, to ten bytes
			policies[i] = fmt.Sprintf(`{"scope":"kafka://a/b/t","subscription":"%s%d","messageRate":1}`,
				strings.Repeat("ä", 400), i)
		}
		file := filepath.Join(t.TempDir(), "many.json")
		text := `{"schema":2,"policies":[` + strings.Join(policies, ",") + "]}"
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		status, out, errs := clitest.Run(t.Context(), []cli.Family{Commands},
			"apply", "-f", file, "--policies", "etcd://"+endpoint+"/"+services.Name(t))
		assert.Equal(t, cli.ExitFailed, status)
		assert.Empty(t, out)
		assert.Contains(t, errs, want)
		assert.Contains(t, errs, "\nhint: etcd limits a change's size: change fewer policies ")
	}
}
