package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestNobodyGetsInUnlessSomebodyIsAsked(t *testing.T) {
	t.Parallel()
	pool := newRig(t).db
	if _, err := console.New(console.Config{Pool: pool}); err == nil || !strings.Contains(err.Error(), "nobody could get in") {
		t.Errorf("got %v, want it refused", err)
	}
	_, err := console.New(console.Config{
		Authenticator: fixed{}, PublicURL: "ftp://x", Keys: [][]byte{{1}, {2}, {3}}, Redact: []string{"a"}, Timeout: -1,
	})
	for _, want := range []string{"no Pool", "PublicURL", "Keys has 3", "Keys[0] has 1 bytes", "JSON pointers", "Timeout is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// Every row of the table against every set of capabilities: 403 exactly where the table says.
func TestRoutesTakeTheirCapabilities(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("greet", `{}`, outbox.Options{}).String()
	all := access.Capabilities()
	rows := console.Table()
	if len(rows) < 8 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	// A route needs all of some capabilities: who has none of them, one, all but one, or all, tells each route from
	// every other that it might be.
	sets := [][]access.Capability{nil, all}
	for i := range all {
		sets = append(sets, all[i:i+1], slices.Concat(all[:i], all[i+1:]))
	}
	for _, set := range sets {
		var has []string
		for _, c := range set {
			has = append(has, string(c))
		}
		for _, tenant := range []string{"", "a"} {
			as := r.as(tenant + "+" + strings.Join(has, ","))
			cookies := as.cookies()
			for _, row := range rows {
				wanted := !row.Anyone && (row.Everything && tenant != "" || slices.ContainsFunc(row.Needs, func(c access.Capability) bool { return !slices.Contains(has, string(c)) }))
				path, body := "/"+row.Path, ""
				if slices.Contains(row.Params, "id") {
					path += "?id=" + id
				}
				if row.Method == http.MethodPost {
					path, body = "/"+row.Path, ""
				}
				req := httptest.NewRequestWithContext(t.Context(), row.Method, path, strings.NewReader(body))
				for _, c := range cookies {
					req.AddCookie(c)
				}
				if got := r.send(req).Code; (got == http.StatusForbidden) != wanted {
					t.Errorf("%s /%s as %q of %q: got %d, want 403: %t", row.Method, row.Path, has, tenant, got, wanted)
				}
				if row.Path == "logout" {
					cookies = as.cookies()
				}
			}
		}
	}
}

func TestWithoutALoginThereIsTheLoginAndThenThePage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.as("").get("jobs?kind=a%3Ab&status=dead").is(http.StatusSeeOther)
	location := a.Header().Get("Location")
	if location != "login?back=jobs%3Fkind%3Da%253Ab%26status%3Ddead" {
		t.Errorf("led to %s", location)
	}
	back, _ := url.Parse(location)
	r.as("").get(location).is(http.StatusOK).has("Sign in")
	a = r.as("").post("login", url.Values{"token": {"all"}, "back": {back.Query().Get("back")}}).is(http.StatusSeeOther)
	if got := a.Header().Get("Location"); got != "jobs?kind=a%3Ab&status=dead" {
		t.Errorf("led back to %s", got)
	}
	for _, elsewhere := range []string{"https://evil.example", "//evil.example", "/jobs", "javascript:alert(1)", "jobs/../x", "jobs?a=\n"} {
		a := r.as("").post("login", url.Values{"token": {"all"}, "back": {elsewhere}}).is(http.StatusSeeOther)
		if got := a.Header().Get("Location"); got != "./" {
			t.Errorf("back to %q: led to %s", elsewhere, got)
		}
	}
	r.as("").post("login", url.Values{"token": {"nobody's"}}).is(http.StatusUnauthorized).has("No token is like this one")
	long := "all+" + strings.Repeat("x", 3<<10)
	r.as("").post("login", url.Values{"token": {long}}).is(http.StatusUnprocessableEntity).has("does not fit into a cookie")
	r.as("").post("logout", nil).is(http.StatusSeeOther)
}

// revocable is an Authenticator whose token can be revoked.
type revocable struct{ revoked bool }

func (a *revocable) Authenticate(ctx context.Context, bearer string) (access.Principal, error) {
	if a.revoked {
		return access.Principal{}, access.ErrUnauthenticated
	}
	return fixed{}.Authenticate(ctx, bearer)
}

func TestTheCookie(t *testing.T) {
	key, other := make([]byte, 32), []byte(strings.Repeat("x", 32))
	for name, test := range map[string]struct {
		public, want string
		secure       bool
	}{
		"anywhere":            {"", "ph", false},
		"plain":               {"http://ops.example.org/", "ph", false},
		"https":               {"https://ops.example.org", "__Host-ph", true},
		"https below a path":  {"https://ops.example.org/console", "__Secure-ph", true},
		"https, another port": {"https://ops.example.org:8443/", "__Host-ph", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *console.Config) { c.PublicURL = test.public })
			req := httptest.NewRequestWithContext(t.Context(), "POST", "/login", strings.NewReader("token=all%2Bjobs.read,admin.read"))
			if u, _ := url.Parse(test.public); u.Host != "" {
				req.Host = u.Host
			}
			cookies := r.send(req).is(http.StatusSeeOther).Result().Cookies()
			if len(cookies) != 1 {
				t.Fatalf("got %v", cookies)
			}
			c := cookies[0]
			if c.Name != test.want || c.Secure != test.secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode {
				t.Errorf("got %s", c)
			}
			if strings.Contains(c.Value, "jobs.read") {
				t.Error("the token can be read in it")
			}
		})
	}
	r := newRig(t, func(c *console.Config) { c.Keys = [][]byte{key} })
	kept := r.cookies()
	see := func(r *rig, value string) int {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/me", nil)
		req.AddCookie(&http.Cookie{Name: kept[0].Name, Value: value})
		return r.send(req).Code
	}
	rotated := newRig(t, func(c *console.Config) { c.Keys = [][]byte{other, key} })
	replaced := newRig(t, func(c *console.Config) { c.Keys = [][]byte{other} })
	for name, got := range map[string]int{"the same key": see(r, kept[0].Value), "a new key beside the old one": see(rotated, kept[0].Value)} {
		if got != http.StatusOK {
			t.Errorf("with %s: got %d", name, got)
		}
	}
	changed := []byte(kept[0].Value)
	changed[len(changed)/2] ^= 1
	for name, got := range map[string]int{"another key": see(replaced, kept[0].Value), "a changed byte": see(r, string(changed))} {
		if got != http.StatusSeeOther {
			t.Errorf("with %s: got %d", name, got)
		}
	}
	auth := &revocable{}
	r = newRig(t, func(c *console.Config) { c.Authenticator, c.Keys = auth, [][]byte{key} })
	if got := see(r, kept[0].Value); got != http.StatusOK {
		t.Fatalf("got %d", got)
	}
	auth.revoked = true
	if got := see(r, kept[0].Value); got != http.StatusSeeOther {
		t.Errorf("with a revoked token: got %d", got)
	}
}

func TestRequestsFromElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) { c.PublicURL = "http://ops.example.org/" })
	for name, test := range map[string]struct {
		headers []string
		want    int
	}{
		"same origin":            {[]string{"Sec-Fetch-Site", "same-origin"}, 303},
		"plain http, own origin": {[]string{"Origin", "http://ops.example.org"}, 303},
		"another site":           {[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		"same site only":         {[]string{"Sec-Fetch-Site", "same-site"}, 403},
		"another origin":         {[]string{"Origin", "http://evil.example"}, 403},
		"no origin":              {[]string{"Origin", "null"}, 403},
		"neither header":         {[]string{"X", "y"}, 403},
		"another host":           {[]string{"Sec-Fetch-Site", "same-origin", "Host", "evil.example"}, 421},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequestWithContext(t.Context(), "POST", "/settings", strings.NewReader("theme=dark"))
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Host = "ops.example.org"
			for i := 0; i < len(test.headers); i += 2 {
				if req.Header.Set(test.headers[i], test.headers[i+1]); test.headers[i] == "Host" {
					req.Host = test.headers[i+1]
				}
			}
			w := httptest.NewRecorder()
			r.handler.ServeHTTP(w, req)
			if w.Code != test.want {
				t.Errorf("got %d, want %d: %s", w.Code, test.want, answer{w, t}.text())
			}
		})
	}
}

func TestWithoutALoginOnThisMachineOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) { c.AnonymousLoopback, c.Authenticator = true, nil })
	for name, test := range map[string]struct {
		from, host string
		headers    string
		want       int
	}{
		"this machine":      {"127.0.0.1:7", "localhost:8080", "", 200},
		"IPv6":              {"[::1]:7", "[::1]:8080", "", 200},
		"another machine":   {"192.0.2.7:7", "localhost:8080", "", 401},
		"through a proxy":   {"127.0.0.1:7", "localhost", "X-Forwarded-For=192.0.2.7", 401},
		"by another name":   {"127.0.0.1:7", "evil.example:8080", "", 401},
		"by another's page": {"127.0.0.1:7", "localhost:8080", "Sec-Fetch-Site=cross-site", 401},
		"in another's page": {"127.0.0.1:7", "localhost:8080", "Sec-Fetch-Site=cross-site Sec-Fetch-Mode=navigate Sec-Fetch-Dest=iframe", 401},
		"by a link":         {"127.0.0.1:7", "localhost:8080", "Sec-Fetch-Site=cross-site Sec-Fetch-Mode=navigate Sec-Fetch-Dest=document", 200},
	} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/me", nil)
		req.RemoteAddr, req.Host = test.from, test.host
		for header := range strings.FieldsSeq(test.headers) {
			name, value, _ := strings.Cut(header, "=")
			req.Header.Set(name, value)
		}
		if got := r.send(req).Code; got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestTheEmbeddersOwnLogin(t *testing.T) {
	t.Parallel()
	who := func(r *http.Request) (access.Principal, error) {
		return fixed{}.Authenticate(r.Context(), r.Header.Get("X-Account"))
	}
	r := newRig(t, func(c *console.Config) { c.Who = who })
	for account, want := range map[string]int{"all": 200, "nobody": 401} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/me", nil)
		req.Header.Set("X-Account", account)
		if got := r.send(req).Code; got != want {
			t.Errorf("%s: got %d, want %d", account, got, want)
		}
	}
	if got := r.as("").get("login").Code; got != http.StatusSeeOther {
		t.Errorf("there is a login page: got %d", got)
	}
}

func TestHeadersOfPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nonces := map[string]bool{}
	for _, page := range []string{"jobs", "me", "login", "nothing", "jobs?x=1", "job?id=x"} {
		h := r.get(page).Header()
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{
			"default-src 'none'", "style-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'",
			"require-trusted-types-for 'script'", "trusted-types posthaste",
		} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy is %s, want %s", page, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || nonces[policy] {
			t.Errorf("%s: the policy is %s", page, policy)
		}
		nonces[policy] = true
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", page, name, got, want)
			}
		}
	}
}
