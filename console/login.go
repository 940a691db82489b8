package console

import (
	"crypto/rand"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
)

// ownPage matches the relative URL of one of the console's pages, and nothing that could lead elsewhere.
var ownPage = regexp.MustCompile(`^([a-z][a-z-]*)?(\?[A-Za-z0-9%&=+_.~*-]*)?$`)

// backTo returns the page that people came from, if it belongs to the console, or else the first one.
func (v *visit) backTo() templ.SafeURL {
	back := v.param("back")
	if len(back) > 4096 || !ownPage.MatchString(back) || back == "" {
		return "./"
	}
	return templ.SafeURL(back)
}

func (s *site) login(v *visit) error {
	if !s.hasLogin() {
		return v.redirect("./")
	}
	return v.render(loginPage(v, ""))
}

// hasLogin reports whether people sign in here.
func (s *site) hasLogin() bool {
	return s.config.Who == nil && (s.config.Authenticator != nil || s.persons != nil)
}

// signIn accepts a token, which is from then on in the sealed cookie, and nowhere else.
func (s *site) signIn(v *visit) error {
	if s.config.Who != nil || s.config.Authenticator == nil {
		return refusal{http.StatusNotFound, "There is no such page", "This console has no login of its own."}
	}
	bearer := strings.TrimSpace(v.param("token"))
	who, err := s.config.Authenticator.Authenticate(v.ctx(), bearer)
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		v.status = http.StatusUnauthorized
		return v.render(loginPage(v, "No token is like this one. It may have been revoked, or it has expired."))
	case err != nil:
		return err
	case who.Tenant.IsZero() && !who.AllTenants:
		v.status = http.StatusForbidden
		return v.render(loginPage(v, "The token belongs to no tenant."))
	}
	if err := s.keep(v, session{ID: rand.Text(), Bearer: bearer, Ends: v.now.Add(sessionLength)}); err != nil {
		return err
	}
	return v.redirect(v.backTo())
}
