package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/access"
)

// sealed: the session is in a cookie that scripts and other sites do not get, and the token is nowhere.
func sealed(t *tab) (faults []string) {
	session := false
	for _, cookie := range call(t, network.GetCookies, network.GetCookiesParams{}).Cookies {
		if strings.Contains(cookie.Value, t.token) {
			faults = append(faults, "the token is in the cookie "+cookie.Name)
		}
		if cookie.Name != "ph" {
			continue
		}
		session = true
		if !cookie.HTTPOnly {
			faults = append(faults, "scripts can read the session")
		}
		if cookie.SameSite != "Lax" {
			faults = append(faults, fmt.Sprintf("other sites send the session: SameSite is %q", cookie.SameSite))
		}
	}
	if !session {
		faults = append(faults, "there is no session")
	}
	places := ask[string](t, `document.documentElement.outerHTML + location.href + document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)`)
	if strings.Contains(places, t.token) {
		faults = append(faults, "the token is on the page, in its address or in its storage")
	}
	return faults
}

func TestSigningInAndOut(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.evilJob()
	tab := c.open(c.root)
	tab.visit(c.root + "jobs?status=dead")
	at := func(want string) {
		t.Helper()
		if got := ask[string](tab, `location.href`); !strings.HasPrefix(got, c.root+want) {
			t.Fatalf("at %s, want %s", got, want)
		}
	}
	at("login?back=")
	tab.signIn("ph_" + strings.Repeat("a", 16) + "_" + strings.Repeat("b", 52))
	at("login")
	if text := ask[string](tab, `document.body.innerText`); !strings.Contains(text, "No token is like this one") {
		t.Errorf("a token that nobody has: got %q", text)
	}
	tab.signIn(c.token)
	at("jobs?status=dead")
	for _, fault := range sealed(tab) {
		t.Error(fault)
	}
	tab.do(chromedp.Click(chromedp.CSS(".menu summary")))
	tab.leave(chromedp.Click(chromedp.CSS(".menu form[action=logout] button")))
	at("login")
	tab.visit(c.root + "jobs")
	at("login")
}

// A token that is revoked shows its person no page that was asked for more than five seconds later.
func TestARevokedTokenIsOutWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	tab, client := c.signedIn(c.root), c.signIn(c.root)
	if _, err := access.NewTokens(c.db, access.TokensConfig{}).Revoke(t.Context(), c.tokenID, "grace"); err != nil {
		t.Fatal(err)
	}
	for revoked := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		asked := time.Since(revoked)
		res, _, err := get(client, c.root+"jobs")
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(res.Request.URL.Path, "/login") {
			t.Logf("a page that was asked for %s later was refused", asked.Round(time.Millisecond))
			break
		}
		if asked > 5*time.Second {
			t.Fatalf("a page that was asked for %s later was shown", asked)
		}
	}
	tab.visit(c.root + "jobs")
	if text := ask[string](tab, `document.body.innerText`); !strings.Contains(text, "Sign in") || strings.Contains(text, "ada") {
		t.Errorf("the page that was open goes on to %q", text)
	}
}

// A page of another site sends a form with the session, which the console refuses. A proxy that says that it is from
// the console itself lets it through: so the form was one that works.
func TestAFormOfAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	to, err := url.Parse(c.root)
	if err != nil {
		t.Fatal(err)
	}
	lying := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Del("Origin")
		r.Out.Header.Set("Sec-Fetch-Site", "same-origin")
	}})
	t.Cleanup(lying.Close)
	for base, taken := range map[string]bool{c.root: false, lying.URL + "/": true} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<!DOCTYPE html><main><form action="%ssettings" method="post"><button name="theme" value="dark">Win</button></form></main>`, base)
		}))
		t.Cleanup(other.Close)
		tab := c.signedIn(base)
		tab.visit(other.URL)
		tab.leave(chromedp.Click(chromedp.CSS("button")))
		if text := ask[string](tab, `document.body.innerText`); strings.Contains(text, "came from elsewhere") == taken {
			t.Errorf("%s: the form of another site got %q", base, text)
		}
		tab.visit(base + "me")
		if dark := ask[string](tab, `document.documentElement.dataset.theme`) == "dark"; dark != taken {
			t.Errorf("%s: the form of another site changed something: %t, want %t", base, dark, taken)
		}
	}
}
