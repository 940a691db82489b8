package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/operator"
)

const (
	maxForm    = 1 << 20 // bytes of a form
	smallForm  = 8 << 10 // a form of this size takes no place: it needs no more than its connection
	largeForms = 8       // concurrent forms that are larger
)

// ServeHTTP wraps everything: it sets the request's id and the headers of every answer, limits the time that a page may
// take, and recovers panics.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := &visit{site: s, w: w, r: r, id: rand.Text(), nonce: rand.Text(), now: time.Now(), connection: r.Context()}
	v.setHeaders()
	if hash, name, ok := assetOf(r.URL.Path); ok {
		s.assets.serve(v, hash, name)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
	defer cancel()
	v.r = r.WithContext(ctx)
	v.readPreferences()
	returned := false
	defer func() {
		if p := recover(); !returned {
			s.recovered(v, p)
		}
	}()
	if err := s.enter(v); err != nil {
		v.refuse(err)
	}
	returned = true
}

// recovered answers after a panic. The panic value goes only to the log.
func (s *site) recovered(v *visit, p any) {
	if p == http.ErrAbortHandler { //nolint:errorlint // the documented way to say it
		panic(p)
	}
	s.log.LogAttrs(v.ctx(), slog.LevelError, "page panicked", slog.String("request_id", v.id),
		slog.String("path", v.r.URL.Path),
		slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	v.refuse(fmt.Errorf("page panicked: %v", p))
}

// setHeaders sets the headers of every answer. A Referrer-Policy of no-referrer would make browsers send Origin: null
// with the console's own forms, and on plain http the Origin is the only thing that distinguishes them from those of
// another site.
func (v *visit) setHeaders() {
	h := v.w.Header()
	h.Set("X-Request-Id", v.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()")
	h.Set("X-Robots-Tag", "noindex")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self' 'nonce-"+v.nonce+
		"'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "+
		"require-trusted-types-for 'script'; trusted-types posthaste")
}

// enter finds the page of a request and admits it or not. Each step needs what the previous ones have found.
func (s *site) enter(v *visit) (err error) {
	if err = s.checkHost(v.r); err != nil {
		return err
	}
	var allowed []string
	if v.route, allowed = routeOf(v.r); v.route == nil {
		_ = s.authenticate(v) // only for the navigation
		if allowed != nil {
			v.w.Header().Set("Allow", strings.Join(allowed, ", "))
			return refusal{
				http.StatusMethodNotAllowed, "This address takes no such request",
				"Go back and use the page's own links and forms.",
			}
		}
		return refusal{http.StatusNotFound, "There is no such page", "The address leads nowhere in this console."}
	}
	if err = s.checkOrigin(v.r); err != nil {
		return err
	}
	if err = s.authenticate(v); err != nil && !v.route.gate.anyone {
		return err
	}
	if err = s.admit(v); err != nil {
		return err
	}
	leaveForm, err := s.takeForm(v)
	if err != nil {
		return err
	}
	defer leaveForm()
	if err = v.readParameters(); err != nil {
		return err
	}
	leave, err := s.places.take(v.ctx(), v.caller())
	if err != nil {
		return err
	}
	v.leave = sync.OnceFunc(leave)
	defer v.leave()
	v.r = v.r.WithContext(operator.WithTenant(v.ctx(), v.tenant()))
	v.operator = s.operator.As(operator.Actor{Name: v.who.Name, RequestID: v.id})
	if v.route.acts() {
		defer s.watch.LetterGroups.Outdate()
	}
	if err = v.route.page(s, v); err == nil && v.route.acts() {
		s.watch.Problems.Outdate()
	}
	return err
}

// checkHost refuses requests to a foreign host name: a name of another site may lead here, and its scripts would then
// share this origin.
func (s *site) checkHost(r *http.Request) error {
	if s.public == nil || strings.EqualFold(r.Host, s.public.Host) || s.config.AnonymousLoopback && isLocal(r) {
		return nil
	}
	return refusal{
		http.StatusMisdirectedRequest, "This console has another address",
		"Open it at its public address: " + s.public.String(),
	}
}

// checkOrigin refuses requests that a page of another site sends.
func (s *site) checkOrigin(r *http.Request) error {
	err := s.origins.Check(r)
	if err == nil && !slices.Contains([]string{http.MethodGet, http.MethodHead}, r.Method) &&
		r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == "" {
		err = errors.New("it says nothing of its origin")
	}
	if err != nil {
		return refusal{
			http.StatusForbidden, "The request came from elsewhere",
			"Only this console's own pages may send it. If a proxy in front changes the Host, " +
				"set the console's public URL.",
		}
	}
	return nil
}

// authenticate identifies the viewer.
func (s *site) authenticate(v *visit) (err error) {
	if s.config.Who != nil {
		v.who, err = s.config.Who(v.r)
	} else if kept, ok := s.cookie.read(v.r, v.now); ok && s.takes(kept) {
		if v.who, err = s.whose(v, kept); err == nil {
			v.kept = &kept
		}
	} else if s.config.AnonymousLoopback && isLocal(v.r) {
		v.who = callers.Everybody
	} else {
		err = access.ErrUnauthenticated
	}
	if err != nil {
		v.who = access.Principal{}
		return err
	}
	if v.who.Tenant.IsZero() && !v.who.AllTenants {
		return refusal{http.StatusForbidden, "You belong to no tenant", "Sign in with a token that has one."}
	}
	v.known = true
	return nil
}

// takes reports whether people can still sign in the way in which the session began.
func (s *site) takes(kept session) bool {
	if kept.Person != nil {
		return s.persons != nil
	}
	return s.config.Authenticator != nil
}

// isLocal reports whether a request is local as callers.IsLocal does, but it accepts a link on another site's page that
// a person follows, which is not a request of that page: the page learns nothing of the answer, and GET changes
// nothing.
func isLocal(r *http.Request) bool {
	h := r.Header
	if r.Method == http.MethodGet && h.Get("Sec-Fetch-Mode") == "navigate" && h.Get("Sec-Fetch-Dest") == "document" &&
		h.Get("Origin") == "" {
		r = r.Clone(r.Context())
		r.Header.Del("Sec-Fetch-Site")
	}
	return callers.IsLocal(r)
}

// admit decides whether the principal may open the page.
func (s *site) admit(v *visit) error {
	g := v.route.gate
	switch {
	case v.route.acts() && v.readOnly() != "":
		return refusal{http.StatusForbidden, "Nothing can be changed now", "This console is read-only: " +
			v.readOnly() + "."}
	case g.anyone:
		return nil
	case g.missing(v.who) != "":
		return notAllowed(string(g.missing(v.who)))
	case g.everything && !v.who.AllTenants:
		return refusal{
			http.StatusForbidden, "This page concerns all tenants",
			"It takes a login that sees all tenants.",
		}
	}
	return nil
}

// takeForm waits until the form, if the request has one, may be read. A form that is not small takes a place until the
// request is done. It does not take one of the places for pages; otherwise forms that arrive slowly would keep pages
// from being made.
func (s *site) takeForm(v *visit) (leave func(), err error) {
	if v.r.Method != http.MethodPost || v.formLimit() == smallForm {
		return func() {}, nil
	}
	return s.forms.take(v.ctx(), v.caller())
}

// formLimit returns the maximum size of the form in bytes. A form that needs no login must be small.
func (v *visit) formLimit() int64 {
	if n := v.r.ContentLength; v.route.gate.anyone || n >= 0 && n <= smallForm {
		return smallForm
	}
	return maxForm
}

// fromHere reports whether a page of the console has led here, or the browser does not say what has: it says so unless
// the console is reached by plain http.
func (v *visit) fromHere() bool {
	from := v.r.Header.Get("Sec-Fetch-Site")
	return from == "" || from == "same-origin"
}

// readParameters reads the query, or the form, and refuses parameters that the row does not name.
func (v *visit) readParameters() (err error) {
	bad := func(why string) error { return refusal{http.StatusBadRequest, "The address cannot be read", why} }
	text := v.r.URL.RawQuery
	if v.r.Method == http.MethodPost {
		if kind := v.r.Header.Get("Content-Type"); kind != "application/x-www-form-urlencoded" {
			return refusal{
				http.StatusUnsupportedMediaType, "The form cannot be read",
				"It has to be sent as browsers send forms.",
			}
		}
		if text != "" {
			return bad("A form has its parameters in its body.")
		}
		body, err := io.ReadAll(http.MaxBytesReader(v.w, v.r.Body, v.formLimit()))
		if err != nil {
			return refusal{http.StatusRequestEntityTooLarge, "The form is too large", "It may have " +
				size(int(v.formLimit())) + "."}
		}
		text = string(body)
	}
	if v.params, err = url.ParseQuery(text); err != nil {
		return bad("Its parameters are not escaped as they should be.")
	}
	if v.r.Method != http.MethodPost && !v.fromHere() {
		v.params.Del("reveal") // nor may the page's own links ask for it
	}
	if v.route.params == anyParams { // they come from elsewhere
		return nil
	}
	allowed := strings.Fields(v.route.params)
	for name, values := range v.params {
		switch {
		case !slices.Contains(allowed, name):
			return bad("It has the parameter " + quoted(name) + ", which this page does not know.")
		case len(values) > 1 && !v.route.repeats(name):
			return bad("It has the parameter " + quoted(name) + " twice.")
		case !utf8.ValidString(values[0]) || strings.IndexByte(values[0], 0) >= 0:
			return bad("The parameter " + quoted(name) + " is not text.")
		}
	}
	return nil
}

// quoted returns a text of the request, cut short.
func quoted(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return "“" + strings.ToValidUTF8(s, "") + "”"
}
