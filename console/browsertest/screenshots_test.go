package browsertest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/outbox"
)

var screenshots = flag.String("screenshots", "", "write pictures of the pages into this `FOLDER`")

// happening has jobs of several kinds come and be carried out, and waits until the page lists them.
func (c *console) happening(t *tab) {
	c.Helper()
	t.await(`document.querySelector(".live").dataset.state`, "on")
	for n := range 6 {
		c.enqueue(receipt{3000 + n, "ada@example.com"}, outbox.Options{Queue: "mail"})
		c.enqueue(charge{3000 + n, "19.90", "tok_1"}, outbox.Options{Queue: "payments", MaxAttempts: 1})
		c.enqueue(stock{"mug-red"}, outbox.Options{Queue: "stock", Delay: time.Hour})
		c.enqueue(invoice{3000 + n, "v3"}, outbox.Options{})
		time.Sleep(150 * time.Millisecond)
	}
	if listed := `document.querySelectorAll(".tail tr[data-job]").length >= 24`; !t.await(listed, "true") {
		t.Error("the page lists no changes")
	}
}

// The pictures of docs/operate/console.md: each page of the navigation, and of those that stand below them one that
// says most.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("make screenshots writes them")
	}
	c := newConsole(t)
	c.usualJobs()
	tab := c.signedIn(c.root)
	pages := ask[[]string](tab, `[...document.querySelectorAll("nav[aria-label=Pages] a")].map((a) => a.getAttribute("href"))`)
	tab.visit(c.root + "jobs?status=dead")
	pages = append(pages, ask[string](tab, `document.querySelector("td a.id").getAttribute("href")`))
	for _, page := range pages {
		name, _, _ := strings.Cut(page, "?")
		for _, l := range []struct {
			scheme        string
			width, height int64
		}{{"light", 1280, 800}, {"dark", 1280, 800}, {"narrow", 360, 800}} {
			scheme := strings.Replace(l.scheme, "narrow", "light", 1)
			tab.look(scheme, l.width, l.height)
			tab.visit(c.root + page)
			tab.do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
			if page == "live" {
				c.happening(tab)
			}
			picture, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*screenshots, name+"-"+l.scheme+".png"), picture, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
