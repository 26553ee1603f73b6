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

// An address is the URL of a policy store or permit store:
// scheme://user:password@host:port,host:port/path?options. It is parsed here, since net/url
// accepts a single host and shows passwords in its errors.
type address struct {
	scheme         string
	user, password string
	hosts          []string // host:port
	path           string   // without the leading slash
	options        url.Values
}

const badUserInfo = "user and password: want them once, before the first host, percent-encoded: " +
	"% as %25, @ as %40, / as %2F, ? as %3F"

// parseAddress parses a URL; a host without a port gets defaultPort, and known are the names of the
// options. Its errors never hold the password.
func parseAddress(text, defaultPort string, known ...string) (a address, err error) {
	fault := func(field, reason string) {
		err = errors.Join(err, fmt.Errorf("%s: %s", field, reason))
	}
	rest, query, _ := strings.Cut(text, "?")
	a.scheme, rest, _ = strings.Cut(rest, "://")
	if strings.Contains(query, "@") || strings.Contains(rest[strings.Index(rest+"/", "/"):], "@") {
		// The part with the @ may belong to a password, and is not shown.
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
		if !strings.Contains(host, ":") ||
			strings.HasSuffix(host, "]") && net.ParseIP(bare) != nil {
			host = net.JoinHostPort(bare, defaultPort)
		}
		name, port, e := net.SplitHostPort(host)
		n, portErr := strconv.ParseUint(port, 10, 16)
		if e != nil || name == "" || portErr != nil || n == 0 {
			// The host may be user:password, and is not shown.
			fault(fmt.Sprintf("host %d", i+1),
				"want host:port with a port of 1 to 65535, and commas between hosts")
		}
		a.hosts = append(a.hosts, host)
	}
	if err != nil {
		return a, err // the options may be the rest of a password
	}
	values, e := url.ParseQuery(query)
	if e != nil {
		fault("options", "want key=value&key=value")
	}
	for key := range values {
		if !slices.Contains(known, key) {
			fault("option "+key, "unknown: want "+strings.Join(known, ", "))
		}
	}
	a.options = values
	if name := values.Get("password-file"); name != "" {
		secret, e := os.ReadFile(name)
		if e != nil {
			fault("option password-file", e.Error())
		}
		a.password = strings.TrimSpace(string(secret))
	}
	return a, err
}

// tlsOptions are the options of a store that is reached over TLS, or by a password.
var tlsOptions = []string{"tls", "ca", "cert", "key", "server-name", "password-file"}

// tls returns the configuration that the options ask for, nil for none; with on, TLS is asked for
// in any case.
func (a address) tls(on bool) (*tls.Config, error) {
	o := a.options
	switch o.Get("tls") {
	case "true":
		on = true
	case "", "false":
	default:
		return nil, fmt.Errorf("option tls: %q: want true or false", o.Get("tls"))
	}
	for _, name := range []string{"ca", "cert", "key", "server-name"} { // of no use without TLS
		if o.Get(name) != "" && o.Get("tls") == "false" {
			return nil, fmt.Errorf("option tls: false contradicts option %s: remove one of them",
				name)
		}
		on = on || o.Get(name) != ""
	}
	if !on {
		return nil, nil
	}
	if (o.Get("cert") == "") != (o.Get("key") == "") {
		return nil, errors.New("options cert and key: one is missing: want both files, or neither")
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.Get("server-name")}
	if name := o.Get("ca"); name != "" {
		pem, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("option ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("option ca: %s: no PEM certificate in it", name)
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

// unknownScheme describes a scheme, and hides it if it may be a password in the wrong place.
func unknownScheme(scheme string) string {
	if strings.ContainsAny(scheme, "@/?") {
		return "no scheme"
	}
	return fmt.Sprintf("scheme %q: unknown", scheme)
}
