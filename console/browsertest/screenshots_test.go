package browsertest

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
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

// lasting starts a Postgres that keeps what it commits, in which the doctor finds nothing wrong, for all consoles.
func lasting() (stop func() error, err error) {
	postgres, err := pgdev.Start(context.Background(), pgdev.Options{})
	if err != nil {
		return nil, err
	}
	return postgres.Stop, os.Setenv("POSTHASTE_TEST_DATABASE_URL", postgres.URL())
}

// pictured is a page with the name of its pictures.
type pictured struct{ name, page string }

// The pictures of docs/operate/console.md: each page of the navigation, and of those that stand below them one that
// says most; on an ordinary day, when nothing has ever happened, and when much is wrong.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("make screenshots writes them")
	}
	empty := newConsole(t)
	empty.seesAll()
	tab := empty.signedIn(empty.root)
	empty.picture(tab, pictured{"problems-none", "problems"}, pictured{"jobs-none", "jobs"})

	many := newConsole(t)
	many.seesAll()
	for _, f := range many.faults() {
		many.exec(f.cause)
	}
	many.relayed()
	many.exec(`UPDATE outbox.sinks SET away_since = now() - interval '9 min', away_code = 'away', away_message = 'dial tcp 10.0.0.7:4222: connection refused' WHERE sink = 'orders'`)
	many.picture(many.signedIn(many.root), pictured{"problems-many", "problems"})

	c := newEditor(t)
	c.seesAll()
	c.usualJobs()
	c.picture(c.open(c.root), pictured{"login", "login"})
	tab = c.signedIn(c.root)
	c.awaitLink(c.signIn(c.root), c.root+"queues", "queue?queue=")
	c.picture(tab, c.usualPages(tab)...)
}

// seesAll lets the console's login see sessions of others: the doctor of one that does not says so.
func (c *console) seesAll() {
	c.Helper()
	c.exec(`GRANT pg_read_all_stats TO ` + c.login())
}

// usualPages returns those of an ordinary day.
func (c *console) usualPages(t *tab) (pages []pictured) {
	c.Helper()
	for _, page := range ask[[]string](t, `[...document.querySelectorAll("nav[aria-label=Pages] a")].map((a) => a.getAttribute("href"))`) {
		name, _, _ := strings.Cut(page, "?")
		pages = append(pages, pictured{name, page})
	}
	for _, below := range []struct{ name, list, link string }{
		{"job", "jobs?status=dead", "td a.id"},
		{"queue", "queues", `td a[href^="queue?queue="]`},
		{"kind", "kinds", `td a[href^="kind?kind="]`},
		{"key", "keys", `td a[href^="key?"]`},
		{"schedule", "schedules", `td a[href^="schedule?"]`},
		{"sink", "sinks", `td a[href="sink?name=billing"]`},
		{"operation", "operations", "td a"},
		{"group", "letters", `a[href^="letters?error="][href*="kind=card.charge"]`},
		{"preview", "", `a[href^="letters-replay?"]`},
	} {
		if below.list != "" {
			t.visit(c.root + below.list)
		} else {
			t.visit(c.root + pages[len(pages)-1].page)
		}
		pages = append(pages, pictured{below.name, ask[string](t, fmt.Sprintf(`document.querySelector("main").querySelector(%q).getAttribute("href")`, below.link))})
	}
	pages = append(pages, pictured{"me", "me"}, pictured{"audit-verify", "audit-verify"})
	return append(pages, pictured{"edit", "job-edit?id=" + c.deadReceipt().String()})
}

// picture writes the pictures of pages.
func (c *console) picture(t *tab, pages ...pictured) {
	c.Helper()
	for _, p := range pages {
		for _, l := range []struct {
			scheme        string
			width, height int64
		}{{"light", 1280, 800}, {"dark", 1280, 800}, {"narrow", 360, 800}} {
			t.look(strings.Replace(l.scheme, "narrow", "light", 1), l.width, l.height)
			if status := t.visit(c.root + p.page); status != 200 {
				t.Fatalf("/%s: got %d", p.page, status)
			}
			t.do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
			if p.name == "live" {
				c.happening(t)
			}
			if p.name == "edit" {
				t.write("#payload", "{\n  \"order\": \"seven\",\n  \"to\": \"ada@example.com\"\n}")
				t.leave(chromedp.Click(chromedp.CSS(send)))
			}
			taken, err := chromedp.Run(t.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			if taken, err = fewColours(taken); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*screenshots, p.name+"-"+l.scheme+".png"), taken, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// usual is how many of the 256 colours of a picture are those that it has most of. The others are those that differ
// most from them: a live dot is small, and keeps its colour.
const usual = 192

// fewColours returns a picture with 256 colours, which takes a third of the bytes.
func fewColours(taken []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(taken))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	all := from.Bounds()
	for y := all.Min.Y; y < all.Max.Y; y++ {
		for x := all.Min.X; x < all.Max.X; x++ {
			count[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], slices.Compare([]uint8{a.R, a.G, a.B}, []uint8{b.R, b.G, b.B}))
	})
	var palette color.Palette
	for _, c := range most[:min(len(most), usual)] {
		palette = append(palette, c)
	}
	for rest := most[len(palette):]; len(rest) > 0 && len(palette) < 256; {
		apart := func(c color.RGBA) int {
			near := palette[palette.Index(c)].(color.RGBA)
			r, g, b := int(c.R)-int(near.R), int(c.G)-int(near.G), int(c.B)-int(near.B)
			return r*r + g*g + b*b
		}
		palette = append(palette, slices.MaxFunc(rest, func(a, b color.RGBA) int { return apart(a) - apart(b) }))
	}
	to := image.NewPaletted(all, palette)
	draw.Draw(to, all, from, all.Min, draw.Src)
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, to)
	return b.Bytes(), err
}
