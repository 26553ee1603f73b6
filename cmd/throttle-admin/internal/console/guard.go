package console

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// policyOfContent lets a page load what this server has, and nothing else.
const policyOfContent = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard answers requests that only read, and that come from a page of this server or from no page.
// A page of another host that a browser has open reaches 127.0.0.1, too: under a name of its own,
// which the Host shows, or with its Origin.
func guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policyOfContent)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		switch {
		case !isLocal(r.Host):
			http.Error(w, "this console answers under 127.0.0.1 and localhost only", http.StatusMisdirectedRequest)
		case !sameOrigin(r) && !opensPage(r):
			http.Error(w, "this console answers no pages of other hosts", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "this console only shows: want GET", http.StatusMethodNotAllowed)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// isLocal reports whether a Host names this machine in a way that no name server can.
func isLocal(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// sameOrigin reports whether a request comes from a page of this server, or from no page.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	origin := r.Header.Get("Origin")
	return origin == "" || origin == "http://"+r.Host
}

// opensPage reports whether somebody follows a link from elsewhere to a page of this server. The
// page has no data: its scripts ask for them.
func opensPage(r *http.Request) bool {
	return slices.Contains(views, r.URL.Path) && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" && r.Header.Get("Origin") == ""
}
