package callers

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// Everybody is the principal of all users of a development server without a login.
var Everybody = access.Principal{Name: "anonymous", AllTenants: true, Capabilities: map[access.Capability]bool{
	access.JobsEnqueue: true, access.JobsRead: true, access.JobsCancel: true,
	access.AdminRead: true, access.AdminMutate: true, access.AdminStream: true, access.PayloadRead: true,
}}

// IsLocal reports whether the request was made on this machine, to this machine, and
// not by a page of another site in its browser (which may have a name that leads
// here: the Host says which).
func IsLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() || r.Header.Get("X-Forwarded-For") != "" ||
		r.Header.Get("Forwarded") != "" {
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	to, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if host != "localhost" && (err != nil || !to.Unmap().IsLoopback()) {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "" || site == "same-origin" || site == "none") && (r.Header.Get("Origin") == "" || isOwnOrigin(r))
}

// isOwnOrigin reports whether the request came from a page of the host it is made to.
func isOwnOrigin(r *http.Request) bool {
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host == r.Host
}
