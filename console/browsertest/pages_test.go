package browsertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// check returns what is wrong with the page that the tab shows.
type check func(*tab) []string

// quiet: nothing was refused by the policy, no script failed, nothing was asked for elsewhere, and no text became HTML.
func quiet(t *tab) []string {
	faults := append(t.take(), ask[[]string](t, `window.__refused ?? []`)...)
	if ask[bool](t, `window.__xss !== undefined`) {
		faults = append(faults, "a hostile text was run as a script")
	}
	return faults
}

// The looks with which a page is checked by axe, and for what. The dark scheme differs in colours only, and a phone
// shows the colours of the light one.
var looks = []struct {
	scheme        string
	width, height int64
	of            string
}{{"light", 1280, 800, "all"}, {"dark", 1280, 800, "colours"}, {"light", 360, 800, "structure"}}

// accessible: axe finds nothing, in the light and the dark scheme and on a phone.
func accessible(t *tab) (faults []string) {
	t.do(chromedp.Evaluate[chromedp.Void](axe))
	defer t.thin()()
	for _, l := range looks {
		t.look(l.scheme, l.width, l.height)
		for _, fault := range ask[[]string](t, fmt.Sprintf(`checks.accessible(%q)`, l.of)) {
			faults = append(faults, fmt.Sprintf("%s, %d px: %s", l.scheme, l.width, fault))
		}
	}
	return faults
}

// narrow: at 320 px nothing has to be scrolled to the side.
func narrow(t *tab) []string {
	t.look("light", 320, 800)
	return ask[[]string](t, `checks.wide()`)
}

// legible: no text lies over another one, and none is cut off where there is room for it, on a wide and a narrow
// screen.
func legible(t *tab) (faults []string) {
	for _, width := range []int64{1280, 360} {
		t.look("light", width, 800)
		for _, fault := range ask[[]string](t, `checks.overlaps()`) {
			faults = append(faults, fmt.Sprintf("%d px: %s", width, fault))
		}
	}
	return faults
}

// reachable: the key Tab comes to each control, and everybody sees where it is.
func reachable(t *tab) []string {
	defer t.thin()()
	t.look("light", 1280, 800)
	for range ask[int](t, `checks.atFirst()`) + 10 {
		call(t, input.DispatchKeyEvent, tabDown) // as if the key was held down
	}
	return ask[[]string](t, `checks.unreached()`)
}

// thin leaves two rows of each shape in the tables of the page, until whole is called.
func (t *tab) thin() (whole func()) {
	t.do(chromedp.Evaluate[chromedp.Void](`checks.thin()`))
	return func() { t.do(chromedp.Evaluate[chromedp.Void](`checks.whole()`)) }
}

var tabDown = input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeRawKeyDown, Key: "Tab", Code: "Tab", WindowsVirtualKeyCode: 9}

// timely: each time is that of its zone.
func timely(t *tab) []string { return ask[[]string](t, `checks.times()`) }

// worded: no blank stands before a punctuation mark.
func worded(t *tab) []string { return ask[[]string](t, `checks.punctuation()`) }

// complete: the page says the same where scripts are switched off. Counts may change from one look to the next, but not
// each time.
func complete(t *tab) []string {
	here := ask[string](t, `location.href`)
	var with, without string
	for try := range 3 {
		if try > 0 {
			t.visit(here)
		}
		with = ask[string](t, `checks.text()`)
		call(t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		t.visit(here)
		without = ask[string](t, `checks.text()`)
		call(t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{})
		if passing.ReplaceAllString(with, "–") == passing.ReplaceAllString(without, "–") {
			return nil
		}
	}
	return []string{fmt.Sprintf("with scripts it says %q, without %q", with, without)}
}

// every is what holds for every page.
var every = []struct {
	name  string
	check check
	slow  bool // one page of each path is enough
}{
	{"quiet", quiet, false},
	{"timely", timely, false},
	{"narrow", narrow, false},
	{"legible", legible, false},
	{"worded", worded, false},
	{"accessible", accessible, true},
	{"reachable", reachable, true},
	{"complete", complete, true},
}

// chosen returns the pages of a crawl that are looked at in the browser: one of each shape, without those that only
// narrow down a list by one more condition. An act on all that a search finds is the same form whatever the search: it
// is looked at with one, and without.
func chosen(pages []string) (some []string) {
	seen := map[string]bool{}
	for _, page := range pages {
		shape := shapeOf(page)
		path, query, narrowed := strings.Cut(shape, "?")
		if strings.HasPrefix(path, "jobs-") {
			shape = fmt.Sprint(path, narrowed)
		}
		if path == "jobs" && strings.Contains(query, "&") || seen[shape] {
			continue
		}
		seen[shape] = true
		some = append(some, page)
	}
	return some
}

func TestEveryPage(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.mayEdit()
	c.usualJobs()
	c.exec(`INSERT INTO outbox.saved_views (tenant_id, person, name, query, saved_by) VALUES ($1, '', 'declined', 'status=dead', 'grace')`, outbox.ID{})
	if err := operator.New(c.db).PauseSchedule(t.Context(), outbox.RootTenant, "stock"); err != nil {
		t.Fatal(err)
	}
	hostile := "job?id=" + c.evilJob().String()
	client := c.signIn(c.root)
	c.awaitCounts(client, c.root)
	f := c.crawl(client, c.root, c.unlinked()...)
	for _, fault := range f.faults {
		t.Error(fault)
	}
	pages := chosen(append([]string{hostile}, f.pages...)) // of all jobs, that one
	t.Logf("%d pages, of which %d are looked at: %q", len(f.pages), len(pages), pages)
	for _, path := range unseen(readRoutes(t), append(pages, signedOut...)) {
		t.Errorf("/%s is a row of the console's table, and is not looked at", path)
	}
	read := &evilTextsRead{of: map[string]bool{}}
	t.Run("tab", func(t *testing.T) {
		for i, some := range byPath(pages) {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				t.Parallel()
				mine := *c
				mine.T = t
				mine.lookAt(mine.signedIn(c.root), some, read)
			})
		}
		t.Run("signed out", func(t *testing.T) {
			t.Parallel()
			mine := *c
			mine.T = t
			mine.lookAt(mine.open(c.root), signedOut, read)
		})
	})
	for where, page := range evilTexts {
		if f.shapes[page]+f.shapes[page+"?id"] > 0 && !read.of[where] {
			t.Errorf("the hostile text of the %s is on no page, as it was stored", where)
		}
	}
}

// signedOut are the pages for people without a session.
var signedOut = []string{"login"}

// unlinked returns pages that a crawl may not come to, because it follows a few links of each shape only: a job of each
// status, what can be done to jobs whose boxes are checked, and a schedule that is paused.
func (c *console) unlinked() (pages []string) {
	c.Helper()
	rows, err := c.db.Query(c.Context(), `SELECT DISTINCT ON (status) status::text, id FROM outbox.jobs WHERE kind NOT LIKE 'relay:%' ORDER BY status, id`)
	if err != nil {
		c.Fatal(err)
	}
	pages = append(pages, "schedule?name=stock&tenant="+outbox.RootTenant.String())
	var status string
	var id outbox.ID
	_, err = pgx.ForEachRow(rows, []any{&status, &id}, func() error {
		pages = append(pages, "job?id="+id.String())
		if act := map[string]string{"created": "release", "pending": "cancel", "retrying": "retry", "dead": "dismiss"}[status]; act != "" {
			pages = append(pages, "selected-"+act+"?id="+id.String()+"&from=jobs")
		}
		return nil
	})
	if err != nil {
		c.Fatal(err)
	}
	return pages
}

// byPath divides pages into as many parts as are looked at side by side; those of one path stay together.
func byPath(pages []string) (parts [4][]string) {
	of := map[string]int{}
	for _, page := range pages {
		path, _, _ := strings.Cut(page, "?")
		if _, known := of[path]; !known {
			of[path] = len(of) % len(parts)
		}
		parts[of[path]] = append(parts[of[path]], page)
	}
	return parts
}

// evilTextsRead records which hostile texts were read on some page.
type evilTextsRead struct {
	mu sync.Mutex
	of map[string]bool
}

func (r *evilTextsRead) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for where := range evilTexts {
		r.of[where] = r.of[where] || strings.Contains(text, shown(where))
	}
}

// lookAt checks pages in a tab.
func (c *console) lookAt(tab *tab, pages []string, read *evilTextsRead) {
	tab.take()
	paths, spent := map[string]bool{}, map[string]time.Duration{}
	defer func() { c.Logf("it took %v", spent) }()
	for _, page := range pages {
		begun := time.Now()
		tab.look("light", 1280, 800)
		if status := tab.visit(c.root + page); status != 200 {
			c.Errorf("/%s: got %d", page, status)
			continue
		}
		spent["visits"] += time.Since(begun)
		path, _, _ := strings.Cut(page, "?")
		for _, e := range every {
			if e.slow && paths[path] {
				continue
			}
			begun := time.Now()
			for _, fault := range e.check(tab) {
				c.Errorf("/%s is not %s: %s", page, e.name, fault)
			}
			spent[e.name] += time.Since(begun)
		}
		paths[path] = true
		read.note(ask[string](tab, `checks.readable()`))
		tab.take()
	}
}
