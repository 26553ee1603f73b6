package pulsar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/auth"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/cli"
	"github.com/dispatchthrottle/throttle/internal/secrets"
	"github.com/dispatchthrottle/throttle/policy"
)

// A webService reads a cluster's admin API. The types of pulsaradmin lack some of its fields.
type webService struct{ client *rest.Client }

func newWebService(config *pulsaradmin.Config) (*webService, error) {
	if strings.ContainsAny(config.WebServiceURL, "@?") { // it may have secrets
		return nil, errors.New("web: has an @ or a ?: want http://host:8080, and --token-file")
	}
	u, err := url.Parse(config.WebServiceURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, &policy.FieldError{
			Field: "web", Value: config.WebServiceURL,
			Reason: "invalid web service: want http://host:8080 or https://host:8443",
		}
	}
	provider, err := auth.GetAuthProvider(config)
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	return &webService{&rest.Client{
		ServiceURL: config.WebServiceURL, VersionInfo: "throttle-admin",
		HTTPClient: &http.Client{Timeout: webTimeout, Transport: provider},
	}}, nil
}

// plaintext reports whether others may read what is sent.
func (w *webService) plaintext() bool {
	u, err := url.Parse(w.client.ServiceURL)
	return err == nil && u.Scheme == "http" && secrets.Remote(u.Hostname())
}

const (
	webTimeout  = 10 * time.Second // of one request
	webRequests = 8                // at the same time
)

// get reads the answer at a path into v; found is false for 404 and for an empty answer.
func (w *webService) get(
	ctx context.Context, v any, parts ...string,
) (found bool, err error) {
	path := "/admin/v2/" + strings.Join(parts, "/")
	body, err := w.client.GetBodyWithContext(ctx, path, v)
	var refused rest.Error
	if errors.As(err, &refused) && refused.Code == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		err = fmt.Errorf("GET %s: %w", path, err)
		switch refused.Code {
		case http.StatusUnauthorized, http.StatusForbidden:
			err = cli.Hint(err, "use --token-file with a token of the cluster's administrator")
		case 0:
			err = cli.Hint(err, "check --web, and whether the broker is up")
		}
	}
	return len(body) > 0, err
}
