package api

import (
	"errors"
	"net/http"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// authenticate returns the principal that makes the request.
func (s *server) authenticate(r *http.Request) (access.Principal, error) {
	given := r.Header.Values("Authorization")
	if len(given) == 0 && s.config.AnonymousLoopback && callers.IsLocal(r) {
		return callers.Everybody, nil
	}
	const scheme = "bearer "
	if len(given) != 1 || len(given[0]) <= len(scheme) || !strings.EqualFold(given[0][:len(scheme)], scheme) ||
		s.config.Authenticator == nil {
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
