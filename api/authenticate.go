package api

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// authenticate finds out who makes the request.
func (s *server) authenticate(r *http.Request) (access.Principal, error) {
	given := r.Header.Values("Authorization")
	if len(given) == 0 && s.config.AnonymousLoopback && isLocal(r) {
		return everybody, nil
	}
	const scheme = "bearer "
	if len(given) != 1 || len(given[0]) <= len(scheme) || !strings.EqualFold(given[0][:len(scheme)], scheme) || s.config.Authenticator == nil {
		return access.Principal{}, unauthenticated.because("")
	}
	bearer := given[0][len(scheme):]
	who, err := s.config.Authenticator.Authenticate(r.Context(), bearer)
	if errors.Is(err, access.ErrUnauthenticated) {
		s.noteRefused(r, bearer, err)
		return access.Principal{}, unauthenticated.because("")
	}
	if err == nil && who.Tenant.IsZero() && !who.AllTenants {
		return access.Principal{}, forbidden.because("The token belongs to no tenant.")
	}
	return who, err
}

// everybody is who uses a development server without a token.
var everybody = access.Principal{Name: "anonymous", AllTenants: true, Capabilities: map[access.Capability]bool{
	access.JobsEnqueue: true, access.JobsRead: true, access.JobsCancel: true,
	access.AdminRead: true, access.AdminMutate: true, access.AdminStream: true, access.PayloadRead: true,
}}

// isLocal reports whether the request was made on this machine, to this machine, and
// not by a page of another site in its browser (which may have a name that leads
// here: the Host says which).
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() || r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
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

func isOwnOrigin(r *http.Request) bool {
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host == r.Host
}
