package browsertest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
)

// through serves the console with answers that were changed on their way: change gets their headers and, of pages,
// their text.
func (c *console) through(change func(http.Header, string) string) (base string) {
	c.Helper()
	to, err := url.Parse(c.root)
	if err != nil {
		c.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: func(res *http.Response) error {
			if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
				_ = change(res.Header, "")
				return nil
			}
			content, err := io.ReadAll(res.Body)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			content = []byte(change(res.Header, string(content)))
			res.Body = io.NopCloser(bytes.NewReader(content))
			res.Header.Set("Content-Length", strconv.Itoa(len(content)))
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	c.Cleanup(server.Close)
	return server.URL + "/"
}

// framed opens a page of another origin that frames the console, and reports whether the browser shows the console
// there.
func (c *console) framed(base string) bool {
	c.Helper()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!DOCTYPE html><title>Win</title><iframe src="%slogin" onload="window.__framed = true"></iframe>`, base)
	}))
	c.Cleanup(other.Close)
	tab := c.open(base)
	tab.visit(other.URL) // another origin of the same host: the frame is in the process of its page, which knows of it
	if !tab.await(`window.__framed`, "true") {
		c.Fatal("the frame is not loaded")
	}
	tree := call(tab, page.GetFrameTree, cdp.Empty{}).FrameTree
	for _, frame := range tree.ChildFrames {
		if frame.Frame.UnreachableURL == "" && strings.HasPrefix(frame.Frame.URL, base) {
			return true
		}
	}
	return false
}

// No page of another origin shows the console in a frame, in which people would click on what they do not see; without
// what forbids that, the browser shows it.
func TestTheConsoleIsInNoFrame(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	if c.framed(c.root) {
		t.Error("a page of another origin shows the console in a frame")
	}
	bare := c.through(func(h http.Header, text string) string {
		h.Del(policy)
		h.Del("X-Frame-Options")
		return text
	})
	if !c.framed(bare) {
		t.Error("without its headers no frame shows the console either: this looks at the wrong thing")
	}
}

const policy = "Content-Security-Policy"

// into puts HTML behind the heading of a page.
func into(page, more string) string { return strings.Replace(page, "</h1>", "</h1>"+more, 1) }

// Each check finds what it is there for, on a page that a proxy has spoiled. What keeps hostile texts from being run
// is spoiled one by one: with the text unescaped the policy still refuses it, and only without the policy it is run.
// make mutants runs the checks on the spoiled pages.
func TestEachCheckFindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	page := "job?id=" + c.evilJob().String()
	raw := func(text string) string {
		return strings.ReplaceAll(text, "&lt;img src=x onerror=__xss=1&gt;", "<img src=x onerror=__xss=1>")
	}
	for _, d := range []struct {
		name   string
		check  check
		want   string
		change func(http.Header, string) string
	}{
		{"nothing", quiet, "", func(_ http.Header, text string) string { return text }},
		{"a text that is not escaped", quiet, "refused script-src", func(_ http.Header, text string) string { return raw(text) }},
		{"a text that is not escaped, and no policy", quiet, "was run as a script", func(h http.Header, text string) string {
			h.Del(policy)
			return raw(text)
		}},
		{"a script in the page", quiet, "refused script-src", func(_ http.Header, text string) string { return into(text, "<script>__xss=1</script>") }},
		{"a style in the page", quiet, "refused style-src", func(_ http.Header, text string) string { return into(text, `<p style="color:red">x</p>`) }},
		{"an image from elsewhere", quiet, "refused img-src", func(_ http.Header, text string) string { return into(text, `<img src="http://127.0.0.2:9/x">`) }},
		{"an image from elsewhere, and no policy", quiet, "asked for http://127.0.0.2:9/x", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<img src="http://127.0.0.2:9/x">`)
		}},
		{"a script that fails", quiet, "a script failed", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, "<script>nowhere()</script>")
		}},
		{"a field without a label", accessible, "axe label", func(_ http.Header, text string) string { return into(text, "<input>") }},
		{"a colour that cannot be read", accessible, "axe color-contrast", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<p style="color:#888;background:#999">hard to read</p>`)
		}},
		{"a colour that cannot be read in the dark", accessible, "dark, 1280 px: axe color-contrast", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<p style="color:light-dark(#000,#444);background:light-dark(#fff,#333)">hard to read</p>`)
		}},
		{"something wide", narrow, "px are needed of 320", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<p style="min-width:400px">x</p>`)
		}},
		{"a control that Tab leaves out", reachable, "no Tab comes to it", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<button onfocus="this.blur()">x</button>`)
		}},
		{"a control whose focus is not seen", reachable, "nobody sees", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<button style="outline:none;transition:none;all:unset">x</button>`)
		}},
		{"a text that a script writes", complete, "with scripts it says", func(h http.Header, text string) string {
			h.Del(policy)
			return into(text, `<p id="late"></p><script>late.textContent="late"</script>`)
		}},
		{"a time of another zone", timely, "is shown as 07:00:00, in UTC it is 06:00:00", func(_ http.Header, text string) string {
			return into(text, `<time datetime="2026-11-01T06:00:00.000Z">07:00:00</time>`)
		}},
		{"a session that scripts can read", sealed, "scripts can read", func(h http.Header, text string) string {
			h.Set("Set-Cookie", strings.Replace(h.Get("Set-Cookie"), "HttpOnly", "", 1))
			return text
		}},
		{"a session that other sites send", sealed, "other sites send", func(h http.Header, text string) string {
			h.Set("Set-Cookie", strings.Replace(h.Get("Set-Cookie"), "SameSite=Lax", "", 1))
			return text
		}},
		{"a token on the page", sealed, "the token is on the page", func(_ http.Header, text string) string { return into(text, c.token) }},
	} {
		if d.want != "" && !*planted {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			mine := *c
			mine.T = t
			base := mine.through(d.change)
			tab := mine.signedIn(base)
			tab.take()
			tab.look("light", 1280, 800)
			tab.visit(base + page)
			found := strings.Join(d.check(tab), "\n")
			if d.want == "" && found != "" || !strings.Contains(found, d.want) {
				t.Errorf("found %q, want %q", found, d.want)
			}
		})
	}
}
