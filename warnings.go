package throttle

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/dispatchthrottle/throttle/internal/secrets"
)

// Warnings returns what is unsafe about the URLs of stores: a password that goes over a network
// without TLS, and files with passwords or keys that other users may read. [Open] logs them. It
// returns none for a URL that cannot be opened.
func Warnings(urls ...string) (all []string) {
	for _, text := range urls {
		for _, w := range warnings(text) {
			if !slices.Contains(all, w) { // both stores may have the same URL
				all = append(all, w)
			}
		}
	}
	return all
}

func warnings(text string) (all []string) {
	scheme, _, _ := strings.Cut(text, "://")
	port, known := storeOptions(scheme)
	a, err := parseAddress(text, port, slices.Concat(known, policyOptions)...)
	if known == nil || err != nil {
		return nil
	}
	servers, err := a.login("", scheme == "rediss")
	if err != nil {
		return nil
	}
	plain := func(whose, option string) {
		all = append(all, fmt.Sprintf("%s://%s: %s goes over the network in plaintext: use TLS, "+
			"with %s", scheme, strings.Join(a.hosts, ","), whose, option))
	}
	remote := slices.ContainsFunc(a.hosts, isRemote)
	if servers.password != nil && servers.tls == nil {
		switch {
		case remote:
			plain("the password", "tls=true or ca=FILE")
		case scheme == "redis+sentinel" || scheme == "redis+cluster": // these hosts name the servers
			plain("the password for servers elsewhere", "tls=true or ca=FILE")
		}
	}
	files := servers.files
	if scheme == "redis+sentinel" {
		sentinels, err := a.sentinels(servers)
		if err != nil {
			return nil
		}
		if remote && sentinels.password != nil && sentinels.tls == nil {
			plain("the password for the Sentinels", "sentinel-tls=true or sentinel-ca=FILE")
		}
		files = append(files, sentinels.files...)
	}
	for _, file := range files {
		if err := secrets.Exposed(file); err != nil {
			all = append(all, err.Error())
		}
	}
	return all
}

func isRemote(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return secrets.Remote(host)
}
