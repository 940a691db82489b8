package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"golang.org/x/net/html"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What changes from one look to the next: times of day, ages, and snapshots of the server, which other tests write to.
var passing = regexp.MustCompile(`\d+:\d+:[\d,]*(@\d+|\s|$)|\d\d:\d\d:\d\d(\.\d+)?|\b\d+ (s|min)\b|\d{4}-\d\d-\d\dT\S+`)

// mainText returns what people read in the main part of a page.
func mainText(page string) string {
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		return err.Error()
	}
	for n := range doc.Descendants() {
		if n.Data != "main" {
			continue
		}
		var text []string
		for d := range n.Descendants() {
			if d.Type == html.TextNode {
				text = append(text, strings.Fields(d.Data)...)
			}
		}
		return passing.ReplaceAllString(strings.Join(text, " "), "–")
	}
	return "no main part"
}

// A page is in its address: another login of the same person sees the same there. Where a proxy takes something off the
// addresses, it does not.
func TestTheAddressIsThePage(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.evilJob()
	for n := range 60 {
		c.enqueue(receipt{n, "ada@example.com"}, outbox.Options{Queue: []string{"mail", "default"}[n%2], Hold: n%3 == 0})
	}
	to, err := url.Parse(c.root)
	if err != nil {
		t.Fatal(err)
	}
	forgetful := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.URL.RawQuery = ""
	}})
	t.Cleanup(forgetful.Close)
	first := c.signIn(c.root)
	c.awaitCounts(first, c.root)
	f := c.crawl(first, c.root)
	for base, same := range map[string]bool{c.root: true, forgetful.URL + "/": false} {
		second := c.signIn(base)
		var differ []string
		for _, page := range chosen(f.pages) {
			var text [2]string
			for range 3 { // a count may come between two looks
				for i, from := range []struct {
					client *http.Client
					base   string
				}{{first, c.root}, {second, base}} {
					_, content, err := get(from.client, from.base+page)
					if err != nil {
						t.Fatal(err)
					}
					text[i] = mainText(content)
				}
				if text[0] == text[1] {
					break
				}
			}
			if text[0] != text[1] {
				differ = append(differ, fmt.Sprintf("/%s:\n%s\n%s", page, text[0], text[1]))
			}
		}
		if same && len(differ) > 0 || !same && len(differ) < 5 {
			t.Errorf("%d pages are others in another session: %.1500s", len(differ), strings.Join(differ, "\n"))
		}
	}
}

// Whatever a person may do, no page offers what would be refused: every link and form that is not marked as not allowed
// works, and what is marked says what is missing.
func TestNothingIsOfferedThatWouldBeRefused(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.usualJobs()
	grants, ofATenant := [][]access.Capability{{access.JobsRead}}, [][]access.Capability{{access.JobsRead}}
	for _, missing := range access.Capabilities() {
		others := slices.DeleteFunc(access.Capabilities(), func(c access.Capability) bool { return c == missing })
		grants = append(grants, others)
		switch missing { // what else a tenant lacks is marked by these
		case access.AdminRead, access.AdminMutate, access.PayloadRead:
			ofATenant = append(ofATenant, others)
		}
	}
	tokens, marked := access.NewTokens(c.db, access.TokensConfig{}), 0
	for n, capabilities := range slices.Concat(grants, ofATenant) {
		grant := access.Grant{Name: "zoe", AllTenants: n < len(grants), Capabilities: capabilities, CreatedBy: "grace"}
		if !grant.AllTenants {
			grant.Tenant = outbox.RootTenant
		}
		token, _, err := tokens.Create(t.Context(), grant)
		if err != nil {
			t.Fatal(err)
		}
		mine := *c
		mine.token = token.Reveal()
		client := mine.signIn(c.root)
		f := mine.crawl(client, c.root)
		for _, fault := range f.faults {
			t.Errorf("with %q: %s", capabilities, fault)
		}
		for act := range f.acts {
			if act == "logout" {
				continue
			}
			if res := mine.post(client, c.root+act, url.Values{}); res.StatusCode == http.StatusForbidden {
				t.Errorf("with %q: the form for %s is refused", capabilities, act)
			}
		}
		for _, m := range f.marked {
			if marked++; !strings.Contains(strings.ToLower(m), "needs ") && !strings.Contains(m, "tenants") {
				t.Errorf("with %q: %q does not say what is missing", capabilities, m)
			}
		}
	}
	if marked == 0 {
		t.Error("nothing was marked as not allowed: this looks at the wrong place")
	}
}

// Times over both changes of the clocks are those of the zone, also on the first page, which a script writes anew.
func TestTimesAreThoseOfTheZone(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	var ids []outbox.ID
	for _, at := range []string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2027-03-14T06:59:59Z", "2027-03-14T07:00:00Z"} {
		runAt, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{RunAt: runAt}))
	}
	for zone, want := range map[string][]string{
		"America/New_York": {"01:30:00", "01:30:00", "01:59:59", "03:00:00"},
		"Asia/Kolkata":     {"11:00:00", "12:00:00", "12:29:59", "12:30:00"},
	} {
		tab := c.open(c.root)
		call(tab, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone})
		tab.visit(c.root + "login")
		tab.signIn(c.token)
		tab.look("light", 1280, 900)
		for n, id := range ids {
			tab.visit(c.root + "job?id=" + id.String())
			for _, fault := range timely(tab) {
				t.Errorf("%s: %s", zone, fault)
			}
			if text := ask[string](tab, `document.querySelector("main").innerText`); !strings.Contains(text, want[n]) {
				t.Errorf("%s: the job that is due at %s is not on its page: %s", zone, want[n], text)
			}
		}
	}
}
