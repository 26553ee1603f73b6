package throttle

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// An address is a store's or permit store's URL: scheme://user:password@host:port,host:port/path?options.
// It is parsed here because net/url knows one host only, and because its errors show passwords.
type address struct {
	scheme         string
	user, password string
	hosts          []string // host:port
	path           string   // without the leading slash
	options        url.Values
}

const badUserInfo = "user and password: stand once, before the first host, and percent-encoded: write % as %25, @ as %40, / as %2F, ? as %3F"

// parseAddress reads a URL, whose hosts get defaultPort if they name none. Its errors never hold the password.
func parseAddress(text, defaultPort string, known ...string) (a address, err error) {
	fault := func(field, reason string) {
		err = errors.Join(err, fmt.Errorf("%s: %s", field, reason))
	}
	rest, query, _ := strings.Cut(text, "?")
	a.scheme, rest, _ = strings.Cut(rest, "://")
	if strings.Contains(query, "@") || strings.Contains(rest[strings.Index(rest+"/", "/"):], "@") {
		// What stands there may be part of a password, and is not shown.
		return a, errors.New(badUserInfo)
	}
	authority, path, _ := strings.Cut(rest, "/")
	a.path = path
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		if strings.Contains(authority[:i], "@") {
			return a, errors.New(badUserInfo)
		}
		authority = authority[i+1:]
		var userErr, passwordErr error
		a.user, userErr = url.PathUnescape(user)
		a.password, passwordErr = url.PathUnescape(password)
		if userErr != nil || passwordErr != nil {
			err = errors.New(badUserInfo)
		}
	}
	for i, host := range strings.Split(authority, ",") {
		bare := strings.Trim(host, "[]")
		if !strings.Contains(host, ":") || strings.HasSuffix(host, "]") && net.ParseIP(bare) != nil {
			host = net.JoinHostPort(bare, defaultPort)
		}
		name, port, e := net.SplitHostPort(host)
		if n, portErr := strconv.ParseUint(port, 10, 16); e != nil || name == "" || portErr != nil || n == 0 {
			// It may be user:password without its host, and is not shown.
			fault(fmt.Sprintf("host %d", i+1), "is not host:port with a port from 1 to 65535; between several are commas")
		}
		a.hosts = append(a.hosts, host)
	}
	if err != nil {
		return a, err // what follows may be the rest of a password
	}
	values, e := url.ParseQuery(query)
	if e != nil {
		fault("options", "are not key=value&key=value")
	}
	for key := range values {
		if !slices.Contains(known, key) {
			fault("option "+key, "is not known: use "+strings.Join(known, ", "))
		}
	}
	a.options = values
	if name := values.Get("password-file"); name != "" {
		secret, e := os.ReadFile(name)
		if e != nil {
			fault("password-file", e.Error())
		}
		a.password = strings.TrimSpace(string(secret))
	}
	return a, err
}

// tlsOptions are what a URL may say about TLS.
var tlsOptions = []string{"tls", "ca", "cert", "key", "server-name", "password-file"}

// tls is the configuration that the options ask for; nil = none. on asks for it by itself.
func (a address) tls(on bool) (*tls.Config, error) {
	o := a.options
	switch o.Get("tls") {
	case "true":
		on = true
	case "", "false":
	default:
		return nil, fmt.Errorf("option tls: %q: want true or false", o.Get("tls"))
	}
	for _, name := range []string{"ca", "cert", "key", "server-name"} { // what would be of no use without TLS
		if o.Get(name) != "" && o.Get("tls") == "false" {
			return nil, fmt.Errorf("option tls: false contradicts option %s: leave one of them out", name)
		}
		on = on || o.Get(name) != ""
	}
	if !on {
		return nil, nil
	}
	if (o.Get("cert") == "") != (o.Get("key") == "") {
		return nil, errors.New("options cert and key: belong together: name both files")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.Get("server-name")}
	if name := o.Get("ca"); name != "" {
		pem, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("option ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("option ca: %s holds no PEM certificate", name)
		}
	}
	if o.Get("cert") != "" {
		pair, err := tls.LoadX509KeyPair(o.Get("cert"), o.Get("key"))
		if err != nil {
			return nil, fmt.Errorf("options cert and key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// unknownScheme names a scheme, unless it may be a password in the wrong place.
func unknownScheme(scheme string) string {
	if strings.ContainsAny(scheme, "@/?") {
		return "it has no scheme"
	}
	return fmt.Sprintf("scheme %q is not known", scheme)
}
