package throttle

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/internal/secrets"
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
	return a, err
}

// tlsOptions are the options of a store that is reached over TLS, or by a password.
var tlsOptions = []string{"tls", "ca", "cert", "key", "server-name", "password-file"}

// policyOptions are the options of a policy store.
var policyOptions = append([]string{"create"}, tlsOptions...)

// sentinelOptions are the options of Sentinels.
var sentinelOptions = []string{
	"sentinel-user", "sentinel-password-file", "sentinel-tls", "sentinel-ca", "sentinel-cert",
	"sentinel-key", "sentinel-server-name",
}

// sentinels returns how to log in to Sentinels. Without options of theirs for TLS, they have that
// of the servers.
func (a address) sentinels(servers login) (login, error) {
	l, err := a.login("sentinel-", false)
	own := slices.ContainsFunc(sentinelOptions[2:], func(name string) bool { // of TLS
		return a.options.Has(name)
	})
	switch {
	case err != nil:
		return l, err
	case l.user != "" && l.password == nil:
		return l, errors.New("option sentinel-user: comes with option sentinel-password-file")
	case !own:
		l.tls = servers.tls
	}
	return l, nil
}

// storeOptions returns the default port of a scheme and the options that its URLs may have; none
// for a scheme without hosts.
func storeOptions(scheme string) (port string, known []string) {
	switch scheme {
	case "etcd":
		return "2379", permitOptions
	case "redis", "rediss", "redis+cluster":
		return "6379", permitOptions
	case "redis+sentinel":
		return "26379", slices.Concat([]string{"master"}, sentinelOptions, permitOptions)
	}
	return "", nil
}

// permitOptions are the options of a permit store.
var permitOptions = append([]string{"timeout"}, tlsOptions...)

// The bounds of the option timeout.
const (
	minTimeout = 10 * time.Millisecond
	maxTimeout = 10 * time.Second
)

// flag returns an option that is true or false; false if it is not set.
func (a address) flag(name string) (bool, error) {
	switch text := a.options.Get(name); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fmt.Errorf("option %s: %q: want true or false", name, text)
	}
}

// timeout returns the option timeout; 0 if it is not set.
func (a address) timeout() (time.Duration, error) {
	text := a.options.Get("timeout")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minTimeout || d > maxTimeout {
		return 0, fmt.Errorf("option timeout: %q: want a duration of %v to %v, such as 500ms",
			text, minTimeout, maxTimeout)
	}
	return d, nil
}

// A login is how to log in to servers.
type login struct {
	user     string
	password func() (string, error)      // nil: none
	tls      func() (*tls.Config, error) // nil: no TLS

	files []string // with a password or a key
}

// login returns how the options say to log in; with on, TLS is asked for in any case. It tries all
// files once, so that an error comes early. prefix is of the options' names.
func (a address) login(prefix string, on bool) (l login, err error) {
	o := func(name string) string { return a.options.Get(prefix + name) }
	l.user = a.user
	if prefix != "" {
		l.user = o("user")
	} else if a.password != "" {
		l.password = secrets.Text(a.password)
	}
	if name := o("password-file"); name != "" {
		l.password, l.files = secrets.File(name), append(l.files, name)
		if _, err := l.password(); err != nil {
			return l, fmt.Errorf("option %spassword-file: %w", prefix, err)
		}
	}
	asked, err := a.flag(prefix + "tls")
	if err != nil {
		return l, err
	}
	on = on || asked
	for _, name := range []string{"ca", "cert", "key", "server-name"} { // of no use without TLS
		if o(name) != "" && o("tls") == "false" {
			return l, fmt.Errorf("option %stls: false contradicts option %[1]s%s: remove one of them",
				prefix, name)
		}
		on = on || o(name) != ""
	}
	if !on {
		return l, nil
	}
	files := &secrets.TLS{
		CA: o("ca"), Cert: o("cert"), Key: o("key"), ServerName: o("server-name"),
		Names: "option " + prefix + "%s",
	}
	l.tls = files.Config
	if files.Key != "" {
		l.files = append(l.files, files.Key)
	}
	_, err = l.tls()
	return l, err
}

// unknownScheme describes a scheme, and hides it if it may be a password in the wrong place.
func unknownScheme(scheme string) string {
	if strings.ContainsAny(scheme, "@/?") {
		return "no scheme"
	}
	return fmt.Sprintf("scheme %q: unknown", scheme)
}
