package shapes

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/dispatchthrottle/throttle/tests/services"
)

const password = "ge+heim" // + stands for itself in a URL's password

// refuses has a ledger fail at everything, with an error that says why and not the password.
func refuses(t *testing.T, url, want string) {
	t.Helper()
	ledger := open(t, url)
	_, _, stateErr := ledger.State(t.Context(), "throttle:{a}")
	_, readErr := ledger.Published(t.Context(), "c")
	for _, err := range []error{
		book(t, ledger, booking("throttle:{a}")), stateErr, readErr, ledger.Publish(t.Context(), "c", "replica", nil, time.Minute),
	} {
		if assert.ErrorContains(t, err, want, url) {
			assert.NotContains(t, err.Error(), "heim")
		}
	}
}

func TestRedisOverTLS(t *testing.T) {
	server, client := services.TLS(t)
	_, stranger := services.TLS(t)
	r := services.RedisTLS(t, server, "--requirepass", password)
	files := "&ca=" + client.CA + "&cert=" + client.Cert + "&key=" + client.Key
	options := "?password-file=" + secret(t, password) + files
	_, addr, _ := strings.Cut(r.URL, "://")

	works(t, open(t, r.URL+options))
	works(t, open(t, "redis://:"+password+"@"+addr+"?"+files[1:]))
	refuses(t, r.URL+strings.Replace(options, client.CA, stranger.CA, 1), "certificate signed by unknown authority")
	refuses(t, "rediss://:"+password+"@"+addr, "certificate signed by unknown authority")
	refuses(t, "rediss://:"+password+"@"+addr+"?ca="+client.CA, "certificate required")
	refuses(t, r.URL+options+"&server-name=another", "wanted to match another")
}
