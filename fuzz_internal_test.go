package throttle

import (
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/promptly"
)

// namesFile matches the options of URLs whose values are names of files.
var namesFile = regexp.MustCompile(`(^|-)(file|ca|cert|key)$`)

// FuzzURL: whatever a URL is, it is refused or parsed, and no error shows its password.
func FuzzURL(f *testing.F) {
	const password = "gH8~kQ2zX"
	f.Add("redis", "user", "host:6379/3", "timeout=300ms&tls=true")
	f.Add("redis+sentinel", "", "a,b:1,[::1]:2", "master=m")
	f.Add("etcd", "a%40b", "host/prefix", "colour=red&=&%zz")
	f.Add("rediss", "us:er@", "h@ost?:1:2", "timeout=-1s")
	f.Fuzz(func(t *testing.T, scheme, user, rest, query string) {
		options, _ := url.ParseQuery(query) // those that can be read
		for name := range options {
			if namesFile.MatchString(name) {
				return
			}
		}
		promptly.Do(t, func() {
			text := scheme + "://" + user + ":" + password + "@" + rest + "?" + query
			for _, open := range []func() error{
				func() error {
					p, err := OpenPermits(text)
					if err == nil {
						err = p.Close()
					}
					return err
				},
				func() error {
					if scheme == "file" {
						return nil // all of it is the name of a file
					}
					p, err := OpenPolicies(t.Context(), text)
					if err == nil {
						err = p.Close()
					}
					return err
				},
				func() error {
					a, err := parseAddress(text, "2379", permitOptions...)
					if err == nil {
						_, err = a.timeout()
					}
					if err == nil {
						_, err = a.login("", false)
					}
					return err
				},
			} {
				if err := open(); err != nil {
					require.NotContains(t, err.Error(), password)
				}
			}
		})
	})
}
