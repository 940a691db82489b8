package access

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/oidctest"
	"github.com/posthaste-dev/posthaste/outbox"
)

const callback = "http://127.0.0.1:9/console/callback"

// newSignIn returns the way in for operators of a provider.
func newSignIn(t *testing.T, p *oidctest.Provider, change ...func(*SignInConfig)) *SignIn {
	t.Helper()
	p.Allow(callback)
	c := SignInConfig{
		ClientID: p.Client, ClientSecret: p.Secret, CallbackURL: callback,
		Provider: OIDCConfig{
			Issuer: p.URL, NameClaim: "email", CapabilityClaim: "roles", Capabilities: map[string][]Capability{"operator": {AdminRead, JobsRead}},
			Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
		},
	}
	for _, f := range change {
		f(&c)
	}
	s, err := NewSignIn(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// visited follows an address of the provider, as a person's browser does, and returns the parameters with which the
// provider sends the person back.
func visited(t *testing.T, address string) url.Values {
	t.Helper()
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	to, err := res.Location()
	if err != nil || !strings.HasPrefix(to.String(), callback+"?") {
		t.Fatalf("the provider answers %s, leads to %v", res.Status, to)
	}
	return to.Query()
}

// begun begins a sign-in, and returns it and the parameters with which its person comes back from the provider.
func begun(t *testing.T, s *SignIn) (Attempt, url.Values) {
	t.Helper()
	a, to, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return a, visited(t, to)
}

func wantReason(t *testing.T, what string, err error, want SignInReason) {
	t.Helper()
	refused, ok := errors.AsType[*SignInError](err)
	if !ok || refused.Reason != want || !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("%s: got %v, want a SignInError of reason %d", what, err, want)
	}
}

func TestAPersonSignsIn(t *testing.T) {
	t.Parallel()
	acme := outbox.NewID()
	for name, c := range map[string]struct {
		rsa, public bool
		change      func(*SignInConfig)
		want        Principal
	}{
		"with a secret, by ES256": {},
		"without one, by RS256":   {rsa: true, public: true},
		"with a tenant": {change: func(c *SignInConfig) {
			c.Provider.TenantClaim, c.Provider.Tenants, c.Provider.AllTenants = "sub", map[string]outbox.ID{"u-1": acme}, "operator"
		}, want: Principal{Tenant: acme, AllTenants: true}},
	} {
		key := oidctest.ES("k")
		if c.rsa {
			key = oidctest.RSA("k")
		}
		p := oidctest.New(t, key)
		if c.public {
			p.Secret = ""
		}
		if c.change == nil {
			c.change = func(*SignInConfig) {}
		}
		s := newSignIn(t, p, c.change)
		a, answer := begun(t, s)
		got, err := s.Finish(t.Context(), a, answer)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.want.Name, c.want.Capabilities = "ada@example.org", map[Capability]bool{AdminRead: true, JobsRead: true}
		if c.want.Tenant.IsZero() {
			c.want.Tenant = outbox.RootTenant
		}
		if diff := cmp.Diff(c.want, got.Principal); diff != "" || got.Subject != "u-1" || got.Refresh == "" {
			t.Errorf("%s: got %q (-want +got):\n%s", name, got.Subject, diff)
		}
		_, err = s.Finish(t.Context(), a, answer)
		wantReason(t, name+": the code again", err, InvalidGrant)
		again, err := s.Confirm(t.Context(), got)
		if err != nil || again.Refresh == got.Refresh || again.Subject != "u-1" || again.Principal.Name != "ada@example.org" {
			t.Errorf("%s: confirmed as %+v, %v", name, again, err)
		}
		_, err = s.Confirm(t.Context(), got)
		wantReason(t, name+": the refresh token again", err, InvalidGrant)
	}
}

// Somebody brings what they should not have to the place where the provider sends people back to.
func TestAnAnswerThatIsNotToThisSignInIsRefused(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	s := newSignIn(t, p)
	mine, answer := begun(t, s)
	_, others := begun(t, s)
	with := func(name, value string) url.Values {
		v := url.Values{}
		for n := range answer {
			v.Set(n, answer.Get(n))
		}
		if v.Set(name, value); value == "" {
			v.Del(name)
		}
		return v
	}
	for what, c := range map[string]struct {
		attempt Attempt
		answer  url.Values
		want    SignInReason
	}{
		"another's state":                     {mine, others, UnknownSignIn},
		"no state":                            {mine, with("state", ""), UnknownSignIn},
		"no sign-in that has begun":           {Attempt{}, with("state", ""), UnknownSignIn},
		"of another provider":                 {mine, with("iss", "https://evil.example"), UnknownSignIn},
		"of no provider":                      {mine, with("iss", ""), UnknownSignIn},
		"no code":                             {mine, with("code", ""), UnknownSignIn},
		"an error":                            {mine, with("error", "access_denied"), Denied},
		"another's code, under my own state":  {mine, with("code", others.Get("code")), InvalidGrant},
		"a code that the provider never gave": {mine, with("code", "made up"), InvalidGrant},
		"my code without its verifier":        {Attempt{State: mine.State, Nonce: mine.Nonce}, answer, InvalidGrant},
	} {
		got, err := s.Finish(t.Context(), c.attempt, c.answer)
		wantReason(t, what, err, c.want)
		if got.Principal.Name != "" {
			t.Errorf("%s: got %+v", what, got)
		}
	}
}

// Each ID token is wrong in one way, and would be taken by somebody who does not look at that.
func TestAnIDTokenThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	key, forger := oidctest.ES("k"), oidctest.ES("k")
	p := oidctest.New(t, key)
	s := newSignIn(t, p)
	now := time.Now()
	claim := func(name string, value any) func(*oidctest.Answer) {
		return func(a *oidctest.Answer) { a.Claims[name] = value }
	}
	for what, c := range map[string]struct {
		change func(*oidctest.Answer)
		want   SignInReason
		lax    oidc.Config // takes it
	}{
		"for another client": {claim("aud", "shop"), Untrusted, oidc.Config{SkipClientIDCheck: true}},
		"for several, given to another": {func(a *oidctest.Answer) {
			a.Claims["aud"], a.Claims["azp"] = []string{"console", "shop"}, "shop"
		}, Untrusted, oidc.Config{ClientID: "console"}},
		"for several, given to nobody":    {claim("aud", []string{"console", "shop"}), Untrusted, oidc.Config{ClientID: "console"}},
		"of another issuer":               {claim("iss", "https://evil.example"), Untrusted, oidc.Config{ClientID: "console", SkipIssuerCheck: true}},
		"over":                            {claim("exp", now.Add(-31*time.Second).Unix()), ClocksDiffer, oidc.Config{ClientID: "console", SkipExpiryCheck: true}},
		"not good yet":                    {claim("nbf", now.Add(2*time.Minute).Unix()), ClocksDiffer, oidc.Config{ClientID: "console"}},
		"signed with another key":         {func(a *oidctest.Answer) { a.Key = forger }, Untrusted, oidc.Config{ClientID: "console", InsecureSkipSignatureCheck: true}},
		"not signed":                      {unsigned, Untrusted, oidc.Config{ClientID: "console", InsecureSkipSignatureCheck: true}},
		"of another sign-in":              {claim("nonce", "another's"), Untrusted, oidc.Config{ClientID: "console"}},
		"of no sign-in":                   {func(a *oidctest.Answer) { delete(a.Claims, "nonce") }, Untrusted, oidc.Config{ClientID: "console"}},
		"of nobody with a name":           {claim("email", ""), NoPerson, oidc.Config{ClientID: "console"}},
		"whose address is anybody's":      {claim("email_verified", false), NoPerson, oidc.Config{ClientID: "console"}},
		"of somebody who may do nothing":  {claim("roles", []string{"guest"}), NoCapability, oidc.Config{ClientID: "console"}},
		"of somebody who names no tenant": {claim("org", "unknown"), NoPerson, oidc.Config{ClientID: "console"}},
	} {
		s := s
		if strings.Contains(what, "tenant") {
			s = newSignIn(t, p, func(c *SignInConfig) {
				c.Provider.TenantClaim, c.Provider.Tenants = "org", map[string]outbox.ID{"acme": outbox.NewID()}
			})
		}
		var raw string
		p.Change(func(a *oidctest.Answer) {
			if c.change(a); a.IDToken == "" {
				a.IDToken = oidctest.Sign(a.Key, a.Claims)
			}
			raw = a.IDToken
		})
		a, answer := begun(t, s)
		got, err := s.Finish(t.Context(), a, answer)
		wantReason(t, what, err, c.want)
		if got.Principal.Name != "" {
			t.Errorf("%s: got %+v", what, got)
		}
		c.lax.SupportedSigningAlgs = []string{"ES256"}
		keys := &oidc.StaticKeySet{PublicKeys: []crypto.PublicKey{key.Public().Key}}
		if _, err := oidc.NewVerifier(p.URL, keys, &c.lax).Verify(t.Context(), raw); err != nil && what != "not signed" {
			t.Errorf("%s: it is wrong in another way, too: %v", what, err)
		}
	}
	p.Change(nil)
	a, answer := begun(t, s)
	if _, err := s.Finish(t.Context(), a, answer); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// unsigned replaces the ID token by one with the algorithm none.
func unsigned(a *oidctest.Answer) {
	parts := strings.Split(oidctest.Sign(a.Key, a.Claims), ".")
	a.IDToken = "eyJhbGciOiJub25lIn0." + parts[1] + "."
}

func TestWhatTheProviderSaysLaterCounts(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	s := newSignIn(t, p, func(c *SignInConfig) {
		c.Provider.Capabilities = map[string][]Capability{"operator": {AdminRead}, "guest": {JobsRead}}
	})
	a, answer := begun(t, s)
	who, err := s.Finish(t.Context(), a, answer)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(map[string]any{"sub": "u-1", "email": "ada@example.org", "email_verified": true, "roles": []string{"guest"}})
	if who, err = s.Confirm(t.Context(), who); err != nil || who.Principal.Can(AdminRead) || !who.Principal.Can(JobsRead) {
		t.Errorf("got %+v, %v, want the new role", who.Principal, err)
	}
	p.Down(true)
	if _, err = s.Confirm(t.Context(), who); !errors.Is(err, ErrProviderAway) || errors.Is(err, ErrUnauthenticated) {
		t.Errorf("while the provider is away: got %v", err)
	}
	p.Down(false)
	p.Set(map[string]any{"sub": "u-2", "email": "ada@example.org", "email_verified": true, "roles": []string{"operator"}})
	other, err := s.Confirm(t.Context(), who)
	if wantReason(t, "for somebody else", err, Untrusted); other.Principal.Name != "" {
		t.Errorf("got %+v", other)
	}
	p.Remove()
	_, err = s.Confirm(t.Context(), who)
	wantReason(t, "of somebody who was removed", err, InvalidGrant)
}

// A provider that renews a session without an ID token says nothing of what the person may do: the last one holds until
// it is over, and no longer.
func TestARefreshWithoutAnIDTokenEndsWithTheLastOne(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	s := newSignIn(t, p)
	a, answer := begun(t, s)
	who, err := s.Finish(t.Context(), a, answer)
	if err != nil {
		t.Fatal(err)
	}
	p.Change(func(a *oidctest.Answer) { a.NoIDToken = true })
	again, err := s.Confirm(t.Context(), who)
	if err != nil || !again.Expires.Equal(who.Expires) || again.Refresh == who.Refresh {
		t.Fatalf("while the ID token holds: got %+v, %v", again, err)
	}
	again.Expires = time.Now().Add(-time.Second)
	_, err = s.Confirm(t.Context(), again)
	wantReason(t, "without a new ID token", err, InvalidGrant)
}

func TestAProviderThatIsAwayOrSetUpWrongly(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	var log bytes.Buffer
	s := newSignIn(t, p, func(c *SignInConfig) { c.Provider.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	p.Down(true)
	if _, _, err := s.Begin(t.Context()); !errors.Is(err, ErrProviderAway) {
		t.Errorf("got %v", err)
	}
	p.Down(false)
	s.asked = time.Time{} // the rest is over
	a, answer := begun(t, s)
	p.Down(true)
	if _, err := s.Finish(t.Context(), a, answer); !errors.Is(err, ErrProviderAway) {
		t.Errorf("got %v", err)
	}
	p.Down(false)
	for what, c := range map[string]struct {
		answer oidctest.Answer
		want   SignInReason
	}{
		"another secret":      {oidctest.Answer{Status: 401, Error: "invalid_client"}, Misconfigured},
		"a redirect":          {oidctest.Answer{Status: 307, Error: ""}, Misconfigured},
		"an answer as it was": {oidctest.Answer{Status: 400, Error: "invalid_grant"}, InvalidGrant},
	} {
		p.Change(func(a *oidctest.Answer) { *a = c.answer })
		a, answer := begun(t, s)
		_, err := s.Finish(t.Context(), a, answer)
		wantReason(t, what, err, c.want)
		for _, secret := range []string{a.Verifier, a.Nonce, answer.Get("code"), p.Secret} {
			if strings.Contains(err.Error()+log.String(), secret) {
				t.Errorf("%s: %v has a secret", what, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := newSignIn(t, p).Begin(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("somebody who goes away: got %v", err)
	}
}

func TestASignInIsSetUpCompletely(t *testing.T) {
	t.Parallel()
	_, err := NewSignIn(SignInConfig{CallbackURL: "http://ops.example.org/callback", Provider: OIDCConfig{Issuer: "http://elsewhere.example", Leeway: time.Hour}})
	for _, want := range []string{"ClientID is empty", "CallbackURL is", "Issuer is", "Leeway is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "Audience") {
		t.Errorf("got %v, which complains of what nobody sets", err)
	}
}

func TestTheWayOut(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	s := newSignIn(t, p)
	u, err := url.Parse(s.EndURL(t.Context(), "id.token", "https://ops.example.org/login"))
	if err != nil || u.Path != "/end" || u.Query().Get("id_token_hint") != "id.token" || u.Query().Get("client_id") != "console" ||
		u.Query().Get("post_logout_redirect_uri") != "https://ops.example.org/login" {
		t.Errorf("got %v, %v", u, err)
	}
	away := newSignIn(t, p)
	p.Down(true)
	if got := away.EndURL(t.Context(), "", "https://ops.example.org/login"); got != "" {
		t.Errorf("while the provider is away: got %s", got)
	}
}
