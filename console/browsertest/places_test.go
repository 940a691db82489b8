package browsertest

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// The same pages are found, with their files, wherever the console is: alone, below /console/ of the API's address, and
// behind a proxy below another path, which strips that or leaves it.
func TestTheConsoleIsCompleteUnderAnyPath(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.evilJob()
	to, err := url.Parse(c.root)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}}
	stripped := httptest.NewServer(http.StripPrefix("/a/b", proxy))
	t.Cleanup(stripped.Close)
	unstripped := httptest.NewServer(proxy)
	t.Cleanup(unstripped.Close)

	var want []string
	for _, base := range []string{
		c.root, "http://" + c.serve("--api-addr", "127.0.0.1:0") + "/console/", stripped.URL + "/a/b/", unstripped.URL + "/a/b/",
	} {
		client := c.signIn(base)
		c.awaitLink(client, base+"queues", "status=dead") // a count may have seen the job before it was dead
		c.awaitLink(client, base+"jobs", "jobs-export")   // a search that takes long shows less
		f := c.crawl(client, base)
		for _, fault := range f.faults {
			t.Errorf("%s: %s", base, fault)
		}
		got := slices.Sorted(maps.Keys(f.shapes))
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) || len(got) < 8 {
			t.Errorf("%s has the pages %q, want %q", base, got, want)
		}
	}

	base := stripped.URL + "/a/b/"
	tab := c.signedIn(base)
	for _, fault := range quiet(tab) {
		t.Error(fault)
	}
	tab.do(chromedp.Click(chromedp.CSS(".menu summary")))
	tab.leave(chromedp.Click(chromedp.CSS(".menu button[value=dark]")))
	if at, theme := ask[string](tab, `location.href`), ask[string](tab, `document.documentElement.dataset.theme`); !strings.HasPrefix(at, base) || theme != "dark" {
		t.Errorf("the form for the theme led to %s, which is %q", at, theme)
	}
	tab.do(chromedp.Click(chromedp.CSS(".menu summary")))
	tab.leave(chromedp.Click(chromedp.CSS(".menu form[action=logout] button")))
	if at := ask[string](tab, `location.href`); at != base+"login" {
		t.Errorf("signing out led to %s", at)
	}
}
