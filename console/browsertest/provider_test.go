package browsertest

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/internal/oidctest"
)

// signInProvider serves the console anew, for people of a provider: at an address that is known before the program
// starts.
func (c *console) signInProvider(p *oidctest.Provider) {
	c.Helper()
	var to atomic.Pointer[url.URL]
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to.Load())
		r.Out.Host = r.In.Host
	}})
	c.Cleanup(front.Close)
	c.root = front.URL + "/"
	p.Allow(c.root+"callback", c.root+"login")
	to.Store(&url.URL{Scheme: "http", Host: c.serve("--console-addr", "127.0.0.1:0", "--console-url", c.root, "--oidc-issuer", p.URL,
		"--oidc-name-claim", "email", "--oidc-capability-claim", "roles", "--oidc-all-tenants", "operator", "--oidc-capabilities", "operator=jobs.read+admin.read",
		"--console-oidc-client", p.Client, "--console-oidc-secret", p.Secret, "--console-oidc-recheck", "1s")})
}

// A person signs in at the provider and comes back to where they were, signs out there, too, and is out within seconds
// once the provider has removed them.
func TestAPersonOfAProvider(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	p := oidctest.New(t, oidctest.RSA("k"))
	c.signInProvider(p)
	c.evilJob()
	tab := c.open(c.root)
	tab.token = p.Secret
	button := chromedp.Click(chromedp.CSS(`main a[href^="provider"]`))
	at := func(want string) {
		t.Helper()
		here := ""
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if here = ask[string](tab, `location.href`); strings.HasPrefix(here, c.root+want) {
				return
			}
		}
		t.Fatalf("at %s, want %s", here, want)
	}
	tab.visit(c.root + "jobs?status=dead")
	at("login?back=")
	for _, fault := range append(quiet(tab), accessible(tab)...) {
		t.Errorf("the page where people sign in: %s", fault)
	}
	tab.leave(button)
	at("jobs?status=dead")
	if text := ask[string](tab, `document.body.innerText`); !strings.Contains(text, "ada@example.org") || !strings.Contains(text, "evil.kind") {
		t.Errorf("signed in to %q", text)
	}
	for _, fault := range sealed(tab) {
		t.Error(fault)
	}
	tab.do(chromedp.Click(chromedp.CSS(".menu summary")))
	tab.leave(chromedp.Click(chromedp.CSS(".menu form[action=logout] button")))
	at("login")
	if hints := p.SignedOut(); len(hints) != 1 || hints[0] == "" {
		t.Errorf("signed out at the provider with %q", hints)
	}
	tab.visit(c.root + "jobs")
	at("login?back=jobs")

	tab.leave(button)
	at("jobs")
	p.Remove()
	for removed := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		asked := time.Since(removed)
		tab.visit(c.root + "jobs")
		if strings.Contains(ask[string](tab, `location.href`), "/login") {
			break
		}
		if asked > 5*time.Second {
			t.Fatalf("a page that was asked for %s after somebody was removed was shown", asked)
		}
	}
}
