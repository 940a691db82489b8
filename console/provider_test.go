package console_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/oidctest"
)

const public = "https://ops.example.org/console/"

// log is what a console has logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newRigAt returns a rig of a console at which operators of a provider sign in, and what the console logs.
func newRigAt(t *testing.T, p *oidctest.Provider, change ...func(*console.Config)) (*rig, *log) {
	t.Helper()
	lines := new(log)
	return newRig(t, append([]func(*console.Config){atProvider(p, lines)}, change...)...), lines
}

// atProvider makes operators of a provider sign in at a console.
func atProvider(p *oidctest.Provider, lines *log) func(*console.Config) {
	p.Allow(public+"callback", public+"login")
	return func(c *console.Config) {
		c.PublicURL, c.Keys, c.Recheck, c.Logger = public, [][]byte{make([]byte, 32)}, time.Second, slog.New(slog.NewTextHandler(lines, nil))
		c.OIDC = &access.SignInConfig{
			ClientID: p.Client, ClientSecret: p.Secret,
			Provider: access.OIDCConfig{
				Issuer: p.URL, NameClaim: "email", CapabilityClaim: "roles", AllTenants: "operator", Leeway: time.Nanosecond,
				Capabilities: map[string][]access.Capability{"operator": access.Capabilities(), "guest": {access.JobsRead}},
				Client:       &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second},
			},
		}
	}
}

// visitor is a browser.
type visitor struct {
	*rig
	jar map[string]*http.Cookie
}

func (r *rig) visitor() *visitor { return &visitor{r, map[string]*http.Cookie{}} }

// copied returns another browser with the same cookies.
func (v *visitor) copied() *visitor {
	other := v.visitor()
	for name, c := range v.jar {
		other.jar[name] = c
	}
	return other
}

func (v *visitor) ask(method, page string) answer {
	v.t.Helper()
	req := httptest.NewRequestWithContext(v.t.Context(), method, "/console/"+page, nil)
	req.Host = "ops.example.org"
	for _, c := range v.jar {
		req.AddCookie(c)
	}
	a := v.send(req)
	for _, c := range a.Result().Cookies() {
		if v.jar[c.Name] = c; c.MaxAge < 0 {
			delete(v.jar, c.Name)
		}
	}
	return a
}

// elsewhere returns where an address of the provider leads to: a page of the console.
func elsewhere(t *testing.T, address string) (page string) {
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
	page, ours := strings.CutPrefix(res.Header.Get("Location"), public)
	if !ours {
		t.Fatalf("the provider answers %s, leads to %q", res.Status, res.Header.Get("Location"))
	}
	return page
}

// atProvider visits the provider, and returns the page that it leads back to.
func (v *visitor) atProvider(back string) (callback string) {
	v.t.Helper()
	to := v.ask("GET", "provider?"+url.Values{"back": {back}}.Encode()).is(http.StatusSeeOther).Header().Get("Location")
	return elsewhere(v.t, to)
}

func (v *visitor) signsIn() {
	v.t.Helper()
	v.ask("GET", v.atProvider("")).is(http.StatusSeeOther)
}

func TestPeopleSignInAtAProvider(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.RSA("k"))
	r, lines := newRigAt(t, p)
	v := r.visitor()
	if got := v.ask("GET", "jobs?status=dead").is(http.StatusSeeOther).Header().Get("Location"); got != "login?back=jobs%3Fstatus%3Ddead" {
		t.Fatalf("led to %s", got)
	}
	v.ask("GET", "login?back=jobs%3Fstatus%3Ddead").is(200).has("Sign in with "+strings.TrimPrefix(p.URL, "http://"), "Or with a token")
	callback := v.atProvider("jobs?status=dead")
	if c := v.jar["__Secure-ph_attempt"]; c == nil || !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || c.MaxAge > 600 {
		t.Fatalf("the attempt is kept as %v", c)
	}
	before := v.copied()
	if got := v.ask("GET", callback).is(http.StatusSeeOther).Header().Get("Location"); got != "jobs?status=dead" {
		t.Errorf("led back to %s", got)
	}
	if c := v.jar["__Secure-ph"]; c == nil || !c.HttpOnly || !c.Secure || v.jar["__Secure-ph_attempt"] != nil {
		t.Fatalf("the browser keeps %v", v.jar)
	}
	v.ask("GET", "me").is(200).has("ada@example.org", "which is asked again every 1 s", "all tenants", "Sign out")
	code, _ := url.ParseQuery(strings.TrimPrefix(callback, "callback?"))
	before.ask("GET", callback).is(400).has("was used already").hasNot(code.Get("code"), code.Get("state"))
	for _, secret := range []string{code.Get("code"), code.Get("state"), p.Secret, v.jar["__Secure-ph"].Value} {
		if strings.Contains(lines.String(), secret) {
			t.Errorf("logged a secret:\n%s", lines)
		}
	}
	for _, evil := range []string{"https://evil.example", "//evil.example", "/jobs", "javascript:alert(1)", "jobs/../x"} {
		v := r.visitor()
		if got := v.ask("GET", v.atProvider(evil)).is(http.StatusSeeOther).Header().Get("Location"); got != "./" {
			t.Errorf("back to %q: led to %s", evil, got)
		}
	}
}

// changed returns another letter.
func changed(letter string) string {
	if letter == "A" {
		return "B"
	}
	return "A"
}

// Somebody brings a person to the callback with what is not theirs: none of it signs them in.
func TestACallbackOfAnotherSignInIsRefused(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, _ := newRigAt(t, p)
	attacker := r.visitor()
	theirs := attacker.atProvider("")
	victim := r.visitor()
	mine := victim.atProvider("")
	forged := victim.copied()
	attempt := *forged.jar["__Secure-ph_attempt"]
	attempt.Value = attempt.Value[:20] + changed(attempt.Value[20:21]) + attempt.Value[21:]
	forged.jar["__Secure-ph_attempt"] = &attempt
	mixed, _ := url.ParseQuery(strings.TrimPrefix(mine, "callback?"))
	other, _ := url.ParseQuery(strings.TrimPrefix(theirs, "callback?"))
	mixed.Set("code", other.Get("code"))
	for what, c := range map[string]struct {
		browser *visitor
		page    string
		status  int
		says    string
	}{
		"a link with another's code and state": {victim.copied(), theirs, 400, "no sign-in that your browser has begun"},
		"a link in a browser that began none":  {r.visitor(), theirs, 400, "no sign-in that your browser has begun"},
		"another's code under the own state":   {victim.copied(), "callback?" + mixed.Encode(), 400, "was used already"},
		"an attempt that was changed":          {forged, mine, 400, "no sign-in that your browser has begun"},
		"an attempt in place of the session":   {r.visitor(), "me", 303, ""},
		"what the provider says to a stranger": {r.visitor(), "callback?error=x&error_description=Call+0900", 400, "Begin again"},
		"a refusal of the provider":            {victim.copied(), "callback?error=access_denied&iss=" + url.QueryEscape(p.URL) + "&state=" + mixed.Get("state"), 403, "access_denied"},
		"parameters twice, and unknown ones":   {victim.copied(), "callback?x=1&x=2", 400, "Begin again"},
	} {
		if what == "an attempt in place of the session" {
			c.browser.jar["__Secure-ph"] = &http.Cookie{Name: "__Secure-ph", Value: victim.jar["__Secure-ph_attempt"].Value}
		}
		a := c.browser.ask("GET", c.page).is(c.status).has(c.says).hasNot("0900")
		if c.browser.jar["__Secure-ph"] != nil && what != "an attempt in place of the session" {
			t.Errorf("%s: somebody is signed in: %s", what, a.text())
		}
	}
	victim.ask("GET", mine).is(http.StatusSeeOther)
	victim.ask("GET", "me").is(200)
}

func TestPeopleReadWhyTheyDoNotGetIn(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, _ := newRigAt(t, p)
	p.Down(true)
	r.visitor().ask("GET", "provider").is(503).has("does not answer")
	p.Down(false)
	await(t, "the provider is back", func() bool { return r.visitor().ask("GET", "provider").Code == http.StatusSeeOther })
	for what, c := range map[string]struct {
		change func(*oidctest.Answer)
		status int
		says   string
	}{
		"a clock that is slow":  {func(a *oidctest.Answer) { a.Claims["exp"] = time.Now().Add(-time.Minute).Unix() }, 502, "The clock of"},
		"no role":               {func(a *oidctest.Answer) { a.Claims["roles"] = "visitor" }, 403, `nothing in the claim roles of "ada@example.org" grants anything`},
		"no name":               {func(a *oidctest.Answer) { delete(a.Claims, "email") }, 403, "does not know where you belong"},
		"an unverified address": {func(a *oidctest.Answer) { delete(a.Claims, "email_verified") }, 403, "email_verified is not true"},
		"another audience":      {func(a *oidctest.Answer) { a.Claims["aud"] = "shop" }, 502, "cannot be relied on"},
		"another secret":        {func(a *oidctest.Answer) { a.Status, a.Error = 401, "invalid_client" }, 502, "An operator has to look"},
		"a fault of theirs":     {func(a *oidctest.Answer) { a.Status, a.Error = 500, "server_error" }, 503, "does not answer"},
	} {
		p.Change(c.change)
		v := r.visitor()
		a := v.ask("GET", v.atProvider("jobs")).is(c.status).has(c.says)
		if v.jar["__Secure-ph"] != nil {
			t.Errorf("%s: somebody is signed in: %s", what, a.text())
		}
	}
}

// await asks until the condition holds, for at most half a minute.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func TestTheProviderIsAskedAgain(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, lines := newRigAt(t, p)
	v := r.visitor()
	v.signsIn()
	old := v.copied()
	asked := len(p.Asked())
	p.Set(map[string]any{"sub": "u-1", "email": "ada@example.org", "email_verified": true, "roles": "guest"})
	await(t, "a role that was taken away", func() bool {
		// All come with the same cookie, whose refresh token is good once.
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got := old.copied().ask("GET", "me").Code; got != http.StatusOK {
					t.Errorf("got %d", got)
				}
			})
		}
		wg.Wait()
		return v.ask("GET", "queues").Code == http.StatusForbidden
	})
	if got := len(p.Asked()) - asked; got > 2 {
		t.Errorf("the provider was asked %d times in about a second", got)
	}
	v.ask("GET", "jobs").is(200)
	p.Down(true)
	await(t, "the provider is away", func() bool {
		v.ask("GET", "jobs").is(200)
		return strings.Contains(lines.String(), "session not confirmed")
	})
	v.ask("GET", "jobs").is(200)
	p.Down(false)

	other, fresh := r.visitor(), r.visitor()
	other.signsIn()
	p.Remove()
	await(t, "somebody who was removed", func() bool { return other.ask("GET", "jobs").Code == http.StatusSeeOther })
	other.ask("GET", "me").is(http.StatusSeeOther)
	fresh.ask("GET", fresh.atProvider("")).is(400)
}

func TestASessionWithoutARefreshTokenEndsWithItsIDToken(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, lines := newRigAt(t, p)
	p.Life(2 * time.Second)
	p.Change(func(a *oidctest.Answer) { a.Refresh = "" })
	v := r.visitor()
	v.signsIn()
	v.ask("GET", "me").is(200)
	p.Life(time.Hour)
	p.Change(func(a *oidctest.Answer) { a.Refresh = strings.Repeat("long ", 800) })
	large := r.visitor()
	large.signsIn()
	if !strings.Contains(lines.String(), "refresh token too large") || len(large.jar["__Secure-ph"].Value) > 4096 {
		t.Errorf("kept %d bytes:\n%s", len(large.jar["__Secure-ph"].Value), lines)
	}
	await(t, "the ID token is over", func() bool { return v.ask("GET", "me").Code == http.StatusSeeOther })
	large.ask("GET", "me").is(200)
}

// The clock was an hour ahead, and was set right. For an hour the provider would not be asked for people who signed in
// meanwhile.
func TestASessionFromTheFutureIsOver(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, _ := newRigAt(t, p, func(c *console.Config) { c.Recheck = time.Minute })
	for ahead, want := range map[time.Duration]int{0: 200, 30 * time.Second: 200, time.Hour: http.StatusSeeOther} {
		v := r.visitor()
		v.jar["__Secure-ph"] = &http.Cookie{Name: "__Secure-ph", Value: console.Confirmed(make([]byte, 32), p.URL, time.Now().Add(ahead))}
		if got := v.ask("GET", "me").Code; got != want {
			t.Errorf("confirmed %s ahead: got %d, want %d", ahead, got, want)
		}
	}
}

// An ID token that is good for a day keeps nobody signed in for longer than the provider's word holds.
func TestASessionWithoutARefreshTokenEndsAfterAnHour(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, _ := newRigAt(t, p)
	for ago, want := range map[time.Duration]int{59 * time.Minute: 200, 61 * time.Minute: http.StatusSeeOther} {
		v := r.visitor()
		cookie := console.Unrenewed(make([]byte, 32), p.URL, time.Now().Add(-ago), time.Now().Add(time.Hour))
		v.jar["__Secure-ph"] = &http.Cookie{Name: "__Secure-ph", Value: cookie}
		if got := v.ask("GET", "me").Code; got != want {
			t.Errorf("confirmed %s ago: got %d, want %d", ago, got, want)
		}
	}
}

func TestPeopleSignOutAtTheProviderToo(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t, oidctest.ES("k"))
	r, _ := newRigAt(t, p)
	v := r.visitor()
	v.signsIn()
	stolen := v.copied()
	a := v.ask("POST", "logout").is(200).has("You are signed out", "Go on")
	to, ok := strings.CutPrefix(a.Header().Get("Refresh"), "0; url=")
	if !ok || !strings.HasPrefix(to, p.URL+"/end?") {
		t.Fatalf("leads to %q", to)
	}
	if page := elsewhere(t, to); page != "login" {
		t.Errorf("the provider leads back to %s", page)
	}
	if hints := p.SignedOut(); len(hints) != 1 || strings.Count(hints[0], ".") != 2 {
		t.Errorf("signed out with %q", hints)
	}
	v.ask("GET", "me").is(http.StatusSeeOther)
	stolen.ask("GET", "me").is(http.StatusSeeOther)
	v.signsIn()
	p.Down(true)
	if got := v.ask("POST", "logout").Code; got != 200 && got != http.StatusSeeOther {
		t.Errorf("signing out while the provider is away: got %d", got)
	}
}

func TestAProviderIsSetUpWithItsAddress(t *testing.T) {
	t.Parallel()
	pool := newRig(t).db
	for want, c := range map[string]console.Config{
		"OIDC without a PublicURL": {OIDC: &access.SignInConfig{}},
		"both OIDC and Who":        {OIDC: &access.SignInConfig{}, Who: func(*http.Request) (access.Principal, error) { return access.Principal{}, nil }},
		"below the PublicURL":      {PublicURL: public, OIDC: &access.SignInConfig{CallbackURL: "https://ops.example.org/callback"}},
		"ClientID is empty":        {PublicURL: public, OIDC: &access.SignInConfig{}},
		"Recheck is 1h0m0s":        {Recheck: time.Hour, Authenticator: fixed{}},
	} {
		c.Pool = pool
		if _, err := console.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	newRig(t).visitor().ask("GET", "provider").is(404)
	newRig(t).visitor().ask("GET", "callback?code=x").is(404)
}
