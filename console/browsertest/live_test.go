package browsertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// road is between a browser and the console. It may change what files of the console say, and ends, stops or counts
// streams.
type road struct {
	base     string
	opened   atomic.Int64                     // streams that were asked for
	open     atomic.Int64                     // of them, those that are open
	requests atomic.Int64                     // of all kinds
	stops    atomic.Bool                      // nothing comes through any more, and nothing ends
	cut      atomic.Pointer[func([]byte) int] // how much of a text comes through before its stream ends
}

// road makes one that replaces texts of files, old and new in turns.
func (c *console) road(replace ...string) *road {
	c.Helper()
	to, err := url.Parse(c.root)
	if err != nil {
		c.Fatal(err)
	}
	r := &road{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: func(res *http.Response) error {
			if len(replace) == 0 || res.Header.Get("Content-Type") == "text/event-stream" {
				return nil
			}
			content, err := io.ReadAll(res.Body)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			content = []byte(strings.NewReplacer(replace...).Replace(string(content)))
			res.Body = io.NopCloser(bytes.NewReader(content))
			res.Header.Set("Content-Length", strconv.Itoa(len(content)))
			return nil
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.requests.Add(1)
		stream := strings.HasSuffix(q.URL.Path, "/events")
		if r.stops.Load() {
			<-q.Context().Done()
			return
		}
		if !stream {
			proxy.ServeHTTP(w, q)
			return
		}
		r.opened.Add(1)
		r.open.Add(1)
		defer r.open.Add(-1)
		proxy.ServeHTTP(&stopping{w, r, q}, q)
	}))
	c.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.base = server.URL + "/"
	return r
}

// stopping is a stream that says nothing more when the road stops.
type stopping struct {
	http.ResponseWriter
	road *road
	r    *http.Request
}

func (s *stopping) Write(text []byte) (int, error) {
	if s.road.stops.Load() {
		<-s.r.Context().Done()
	}
	if cut := s.road.cut.Load(); cut != nil {
		if through := (*cut)(text); through < len(text) {
			_, _ = s.ResponseWriter.Write(text[:through])
			_ = http.NewResponseController(s.ResponseWriter).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	return s.ResponseWriter.Write(text)
}

func (s *stopping) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// over opens a tab in which somebody has signed in, for what comes over the road.
func (c *console) over(r *road) *tab {
	c.Helper()
	t := c.signedIn(c.root) // cookies are those of a host, whatever the port
	t.visit("about:blank")
	t.origin = strings.TrimSuffix(r.base, "/")
	t.take()
	return t
}

// list opens a list of jobs, and waits until it follows them.
func (c *console) list(r *road, page string) *tab {
	c.Helper()
	t := c.over(r)
	t.look("light", 1280, 900)
	t.visit(r.base + page)
	t.await(`document.querySelector(".live").dataset.state`, "on")
	// It has read itself again.
	t.await(`document.querySelector(".live time").dateTime !== document.documentElement.dataset.now`, "true")
	return t
}

// await waits until an expression is what it should be; false if it is not within some seconds.
func (t *tab) await(expression, want string) bool {
	t.Helper()
	return t.within(5*time.Second, expression, want)
}

// within waits for so long at most, and longer where it is expected that the expression becomes what it should be.
func (t *tab) within(most time.Duration, expression, want string) bool {
	t.Helper()
	return t.briefly(max(most, t.willing), expression, want)
}

// What the design promises, by the clock, fails here whatever the machine has to do: each has a margin for that, and is
// not stretched by what a tab is willing to wait.
const (
	outWithin  = 15 * time.Second // a login that was revoked, or may do less, has no stream any more: 5 s are promised
	actWithin  = 3 * time.Second  // a page shows what was done to a queue: 1 s is promised
	lostWithin = 30 * time.Second // a page says that nothing comes through any more: 20 s are promised
)

// briefly waits for so long at most.
func (t *tab) briefly(most time.Duration, expression, want string) bool {
	t.Helper()
	return ask[bool](t, fmt.Sprintf(`new Promise((done) => {
		const end = performance.now() + %d;
		const look = () => { if (String(%s) === %q) done(true); else if (performance.now() > end) done(false); else setTimeout(look, 15); };
		look();
	})`, most.Milliseconds(), expression, want))
}

// press presses a key that writes a character, as a keyboard does: what comes of it can be prevented.
func (t *tab) press(keys string) {
	t.Helper()
	for _, key := range keys {
		call(t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: string(key), Text: string(key)})
		call(t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: string(key)})
	}
}

// statusOf returns an expression for the status that the row of a job shows.
func statusOf(id outbox.ID) string {
	return fmt.Sprintf(`document.querySelector('tr[data-job="%s"] .status')?.textContent.trim()`, id)
}

// claimed has a worker begin with a job.
func (c *console) claimed(id outbox.ID) {
	c.Helper()
	c.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = attempt + 1, lease_owner = 'shop-7', lease_expires_at = now() + interval '1 h',
		started_at = now() WHERE id = $1`, id)
}

// retrying has a worker give a job back.
func (c *console) retrying(id outbox.ID) {
	c.Helper()
	c.exec(`UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, run_at = now() + interval '1 h',
		last_error_code = 'smtp', last_error_message = 'no relay' WHERE id = $1`, id)
}

// follows: a job changes in its row, with what the server says of it, and no row moves; a new job waits behind a note.
func follows(c *console, r *road) (faults []string) {
	var ids []outbox.ID
	for range 25 {
		ids = append(ids, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{Queue: "mail"}))
	}
	t := c.list(r, "jobs?queue=mail")
	boxes := `[...document.querySelectorAll("main tr")].map((r) => [r.dataset.job, r.getBoundingClientRect().y]).join()`
	before := ask[string](t, boxes)
	c.claimed(ids[3])
	for n := range 3 {
		c.enqueue(receipt{2, "b@example.com"}, outbox.Options{Queue: []string{"mail", "mail", "other"}[n]})
	}
	if !t.await(statusOf(ids[3]), "running") {
		return []string{"the row of a job that runs says " + ask[string](t, statusOf(ids[3]))}
	}
	if worker := fmt.Sprintf(`document.querySelector('tr[data-job="%s"] [data-th="Run or due"] .name')?.textContent`, ids[3]); !t.await(worker, "shop-7") {
		faults = append(faults, "the row does not say where the job runs")
	}
	if !t.await(`document.querySelector(".fresh a")?.textContent`, "2 new · show") {
		faults = append(faults, "two new jobs are announced as "+ask[string](t, `document.querySelector(".fresh a")?.textContent ?? "nothing"`))
	}
	if after := ask[string](t, boxes); after != before {
		faults = append(faults, "rows have moved")
	}
	if len(faults) == 0 {
		t.leave(chromedp.Click(chromedp.CSS(".fresh a")))
		if rows := ask[int](t, `document.querySelectorAll("main tr[data-job]").length`); rows != 27 {
			faults = append(faults, fmt.Sprintf("the note leads to %d jobs", rows))
		}
	}
	return append(faults, t.take()...)
}

// ordered: a state of an earlier epoch never overwrites a later one, wherever it comes from.
func ordered(c *console, r *road) (faults []string) {
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	c.claimed(id)
	c.retrying(id)
	t := c.list(r, "jobs")
	for _, late := range []string{
		`(m) => m.patch(row, {id, epoch: 1, status: "running", attempt: 1})`,
		`(m) => { const old = row.cloneNode(true); old.dataset.epoch = "0"; old.querySelector(".status").textContent = "running"; m.renew(old, Infinity); }`,
	} {
		ask[bool](t, fmt.Sprintf(`import(document.querySelector("script[src*='live.js']").src).then((m) => { const id = "%s", row = document.querySelector("tr[data-job]"); (%s)(m); return true; })`, id, late))
		if status := ask[string](t, statusOf(id)); status != "retrying" {
			faults = append(faults, "a late state has made it "+status)
		}
	}
	return faults
}

// patient: what a person has the focus on and has selected stays through many changes.
func patient(c *console, r *road) (faults []string) {
	var ids []outbox.ID
	for range 10 {
		ids = append(ids, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{}))
	}
	t := c.list(r, "jobs")
	ask[bool](t, fmt.Sprintf(`document.querySelector('tr[data-job="%s"] a').focus(), getSelection().selectAllChildren(document.querySelector('tr[data-job="%s"] .status')), true`, ids[2], ids[4]))
	for range 5 {
		for _, id := range ids {
			c.claimed(id)
			c.retrying(id)
		}
	}
	if !t.await(statusOf(ids[2]), "retrying") {
		faults = append(faults, "what has the focus is "+ask[string](t, statusOf(ids[2]))+" for ever")
	}
	if got := ask[string](t, `document.activeElement.closest("tr")?.dataset.job ?? "nothing"`); got != ids[2].String() {
		faults = append(faults, "the focus went to "+got)
	}
	if got := strings.TrimSpace(ask[string](t, `getSelection().toString()`)); got != "pending" {
		faults = append(faults, fmt.Sprintf("the selection became %q", got))
	}
	ask[bool](t, `getSelection().removeAllRanges(), true`)
	if !t.await(statusOf(ids[4]), "retrying") {
		faults = append(faults, "what was selected is "+ask[string](t, statusOf(ids[4]))+" for ever")
	}
	return faults
}

// replayed: a letter of a group that somebody runs again stays in its row, and says so, whether the page hears of it or
// only reads itself again.
func replayed(c *console, r *road) (faults []string) {
	var ids []outbox.ID
	for range 3 {
		id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{MaxAttempts: 1})
		c.claimed(id)
		c.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, failed_at = now(), error_fingerprint = 'f' WHERE id = $1`, id)
		ids = append(ids, id)
	}
	again := `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = 0, failed_at = NULL, error_fingerprint = NULL WHERE id = $1`
	t := c.list(r, "letters?error=f&kind=receipt.send")
	const attempts = `document.querySelector('tr[data-job="%s"] [data-th="Attempts"]')?.textContent.trim()`
	t.press(".")
	t.await(`document.querySelector(".live").dataset.state`, "paused")
	c.exec(again, ids[0])
	t.press(".")
	for n, id := range ids[:2] {
		if n > 0 {
			c.exec(again, id)
		}
		if !t.await(statusOf(id), "pending") {
			faults = append(faults, fmt.Sprintf("letter %d that runs again says %s", n, ask[string](t, statusOf(id))))
		}
		if got := ask[string](t, fmt.Sprintf(attempts, id)); got != "0/1" {
			faults = append(faults, "its attempts are "+got)
		}
	}
	if got := ask[string](t, statusOf(ids[2])); got != "dead" {
		faults = append(faults, "the other says "+got)
	}
	return faults
}

// solved: what is over leaves the page although a person has the focus in it, and the others stay what they are, with
// the focus if it is in one.
func solved(c *console, r *road) (faults []string) {
	for _, reason := range []string{"first", "second", "third"} {
		_, err := operator.New(c.db).Because(reason).StartOperation(c.Context(), operator.OperationSpec{Act: operator.ReplayLetters})
		if err != nil {
			c.Fatal(err)
		}
	}
	t := c.over(r)
	t.visit(r.base + "operations")
	row := func(reason string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("[data-th=Reason]").textContent.trim() === %q)`, reason)
	}
	ask[bool](t, row("second")+`.querySelector("a").focus(), true`)
	for _, reason := range []string{"third", "second"} { // first one before it goes, then it goes itself
		c.exec(`DELETE FROM outbox.operations WHERE reason = $1`, reason)
		if !t.within(20*time.Second, row(reason)+` === undefined`, "true") {
			return append(faults, "operation "+reason+" is over, and stays")
		}
		at := ask[string](t, `document.activeElement.closest("tr")?.querySelector("[data-th=Reason]").textContent.trim() ?? document.activeElement.localName`)
		if want := map[string]string{"third": "second", "second": "tbody"}[reason]; at != want {
			faults = append(faults, "the focus went to "+at)
		}
	}
	if got := ask[string](t, `[...document.querySelectorAll("tbody tr [data-th=Reason]")].map((r) => r.textContent.trim()).join()`); got != "first" {
		faults = append(faults, "the page lists "+got)
	}
	return append(faults, t.take()...)
}

// notified: what somebody else does to a queue, a schedule or a sink, which changes no job, is on the page within a
// second, whatever way the page keeps up.
func notified(c *console, r *road) (faults []string) {
	c.enqueue(receipt{1, "a@example.com"}, outbox.Options{Queue: "mail"})
	c.relayed()
	c.exec(`UPDATE outbox.sinks SET paused_at = NULL`)
	c.exec(`INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('stock', interval '1 day', 'stock.sync', '{}', now() + interval '1 day')`)
	c.awaitCounts(c.signIn(c.root), c.root)
	acts, ctx, t := operator.New(c.db), c.Context(), c.over(r)
	for _, p := range []struct {
		page, says string
		act        func() error
	}{
		{"queues", "paused", func() error { return acts.Pause(ctx, "mail") }},
		{"queue?queue=mail", "waiting", func() error { return acts.Resume(ctx, "mail") }},
		{"queue?queue=mail", "of 17 that may", func() error {
			_, _, err := acts.Limit(ctx, "mail", operator.Limits{MaxRunning: new(17)})
			return err
		}},
		{"now", "paused", func() error { return acts.Pause(ctx, "mail") }},
		{"schedules", "paused", func() error { return acts.PauseSchedule(ctx, outbox.RootTenant, "stock") }},
		{"sinks", "paused", func() error { return acts.PauseSink(ctx, "orders") }},
	} {
		t.visit(r.base + p.page)
		t.await(`document.querySelector(".live").dataset.state`, "on")
		t.await(`document.querySelector(".live time").dateTime !== document.documentElement.dataset.now`, "true")
		says := fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, p.says)
		if ask[bool](t, says) {
			c.Fatalf("/%s says %q before", p.page, p.says)
		}
		if err := p.act(); err != nil {
			c.Fatal(err)
		}
		begun := time.Now()
		if !t.briefly(actWithin, says, "true") {
			faults = append(faults, fmt.Sprintf("/%s does not say %q after %s", p.page, p.says, actWithin))
		}
		t.Logf("/%s says %q after %s", p.page, p.says, time.Since(begun).Round(time.Millisecond))
	}
	return faults
}

// still: paused, no page asks for anything, whatever way it keeps up; and it has caught up soon after it goes on.
func still(c *console, r *road) (faults []string) {
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	t := c.list(r, "jobs")
	for _, page := range []string{"job?id=" + id.String(), "now", "problems", "operations", "live"} {
		t := c.beside(t)
		t.visit(r.base + page)
		t.press(".")
		t.await(`document.querySelector(".live").dataset.state`, "paused")
	}
	t.press(".")
	t.await(`document.querySelector(".live").dataset.state`, "paused")
	for end := time.Now().Add(5 * time.Second); r.open.Load() > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	time.Sleep(time.Second) // what was asked for before comes in
	before := r.requests.Load()
	c.claimed(id)
	time.Sleep(31 * time.Second) // the slowest page is read again every thirty
	if n := r.requests.Load() - before; n > 0 || r.open.Load() > 0 {
		faults = append(faults, fmt.Sprintf("paused, six pages made %d requests and have %d streams", n, r.open.Load()))
	}
	if status := ask[string](t, statusOf(id)); status != "pending" {
		faults = append(faults, "paused, a row became "+status)
	}
	t.press(".")
	if !t.await(statusOf(id), "running") {
		faults = append(faults, "when it went on it did not catch up")
	}
	return faults
}

// beside opens another tab with the cookies of one.
func (c *console) beside(first *tab) *tab {
	c.Helper()
	ctx, cancel := chromedp.NewContext(first.ctx)
	c.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // it opens, for longer than what follows takes
		c.Fatal(err)
	}
	return &tab{T: first.T, ctx: ctx, origin: first.origin, token: first.token, willing: first.willing}
}

// shared: the tabs of a browser have one stream, and each follows it.
func shared(c *console, r *road) (faults []string) {
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	first := c.list(r, "jobs")
	tabs := []*tab{first}
	for range 6 {
		t := c.beside(first)
		soon, stop := context.WithTimeout(t.ctx, max(10*time.Second, c.willing))
		err := chromedp.Do(soon, chromedp.Navigate(r.base+"jobs"))
		if stop(); err != nil {
			return append(faults, fmt.Sprintf("tab %d does not open: %v", len(tabs)+1, err))
		}
		tabs = append(tabs, t)
	}
	for n, t := range tabs {
		if !t.await(`document.querySelector(".live").dataset.state`, "on") {
			faults = append(faults, fmt.Sprintf("tab %d does not follow", n+1))
		}
	}
	if n := r.open.Load(); n != 1 {
		return append(faults, fmt.Sprintf("seven tabs have %d streams", n))
	}
	c.claimed(id)
	for n, t := range tabs {
		if !t.await(statusOf(id), "running") {
			faults = append(faults, fmt.Sprintf("tab %d has missed a change", n+1))
		}
	}
	return faults
}

// whole: a stream that is cut again and again misses nothing.
func whole(c *console, r *road) (faults []string) {
	var ids []outbox.ID
	for range 20 {
		ids = append(ids, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{}))
	}
	t := c.list(r, "jobs")
	// From now on each stream ends before its third event is through.
	var n atomic.Int64
	cut := func(text []byte) int {
		if n.Add(1)%3 == 0 {
			return 0
		}
		return len(text)
	}
	r.cut.Store(&cut)
	opened := r.opened.Load()
	for at, id := range ids {
		if c.claimed(id); at%5 == 0 {
			t.await(statusOf(id), "running") // so that there are several looks, however long each takes
		}
	}

	if !t.within(20*time.Second, running, "20") {
		faults = append(faults, fmt.Sprintf("of 20 jobs that run it shows %d", ask[int](t, running)))
	}
	if r.opened.Load() == opened {
		faults = append(faults, "no stream was cut")
	}
	return faults
}

// honest: when nothing comes through any more, the page says so.
func honest(c *console, r *road) (faults []string) {
	c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	t := c.list(r, "jobs")
	begun := time.Now()
	r.stops.Store(true)
	if !t.briefly(lostWithin, `document.querySelector(".live").dataset.state`, "lost") {
		return []string{"nothing comes through, and it says " + ask[string](t, `document.querySelector(".live").innerText`)}
	}
	t.Logf("said after %s: %s", time.Since(begun).Round(100*time.Millisecond), ask[string](t, `document.querySelector(".live").innerText`))
	if text := ask[string](t, `document.querySelector(".live").innerText`); !strings.Contains(text, "as of") {
		faults = append(faults, "it does not say how old it is: "+text)
	}
	return faults
}

// polls: a login that may have no stream reads its pages again, and says so.
func polls(c *console, r *road) (faults []string) {
	token, _, err := access.NewTokens(c.db, access.TokensConfig{}).Create(c.Context(), access.Grant{
		Name: "zoe", AllTenants: true, Capabilities: []access.Capability{access.JobsRead}, CreatedBy: "grace",
	})
	if err != nil {
		c.Fatal(err)
	}
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	c.token = token.Reveal()
	t := c.over(r)
	t.visit(r.base + "jobs")
	if !t.await(`document.querySelector(".live .state").textContent`, "every 10 s") {
		faults = append(faults, "it says "+ask[string](t, `document.querySelector(".live").innerText`))
	}
	c.claimed(id)
	if !t.within(14*time.Second, statusOf(id), "running") {
		faults = append(faults, "the row was not read again")
	}
	if n := r.opened.Load(); n > 0 {
		faults = append(faults, fmt.Sprintf("it asked for %d streams", n))
	}
	return faults
}

// leaves: a row stays where it is shown when its job has left the list, as what it is by then. The page's clock is set
// by each page that is read: that of a machine that has slept is behind.
func leaves(c *console, r *road) (faults []string) {
	token, _, err := access.NewTokens(c.db, access.TokensConfig{}).Create(c.Context(), access.Grant{
		Name: "zoe", AllTenants: true, Capabilities: []access.Capability{access.JobsRead}, CreatedBy: "grace",
	})
	if err != nil {
		c.Fatal(err)
	}
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	c.enqueue(receipt{2, "b@example.com"}, outbox.Options{})
	c.token = token.Reveal()
	t := c.over(r)
	t.visit(r.base + "jobs?status=pending")
	c.claimed(id)
	if _, err := c.db.Exec(c.Context(), `UPDATE outbox.jobs SET started_at = now() - interval '10 min' WHERE id = $1`, id); err != nil {
		c.Fatal(err)
	}
	if !t.within(18*time.Second, statusOf(id), "running") {
		faults = append(faults, "the row that left the list says "+ask[string](t, statusOf(id)))
	}
	runs := fmt.Sprintf(`document.querySelector('tr[data-job="%s"] [data-th="Run or due"]').innerText`, id)
	if text := ask[string](t, runs); !strings.HasPrefix(text, "10 min") {
		faults = append(faults, "its clock is not the server's: what has run for 10 min runs for "+text)
	}
	return faults
}

// outlives: the browser has killed the worker that holds the stream, of which it says nothing. A tab notices, and holds
// one of its own.
func outlives(c *console, r *road) (faults []string) {
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	t := c.list(r, "jobs")
	time.Sleep(4 * time.Second) // by then it is gone
	c.claimed(id)
	if !t.within(30*time.Second, statusOf(id), "running") {
		faults = append(faults, "without its worker it says "+ask[string](t, `document.querySelector(".live").innerText`))
	}
	if !t.within(5*time.Second, `document.querySelector(".live").dataset.state`, "on") {
		faults = append(faults, "it says "+ask[string](t, `document.querySelector(".live").innerText`))
	}
	return faults
}

// ended waits until no stream is open any more, which must not take long.
func (r *road) ended(t *tab, since time.Time) (faults []string) {
	for r.open.Load() > 0 && time.Since(since) < outWithin {
		time.Sleep(20 * time.Millisecond)
	}
	after := time.Since(since).Round(time.Millisecond)
	if r.open.Load() > 0 {
		return []string{fmt.Sprintf("the stream went on for %s", after)}
	}
	t.Logf("the stream ended after %s", after)
	return nil
}

// out: a login that is revoked has no stream any more, and the page says that and stays.
func out(c *console, r *road) (faults []string) {
	c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	t := c.list(r, "jobs")
	if _, err := access.NewTokens(c.db, access.TokensConfig{}).Revoke(c.Context(), c.tokenID, "grace"); err != nil {
		c.Fatal(err)
	}
	revoked := time.Now()
	faults = r.ended(t, revoked)
	if !t.await(`document.querySelector(".banner a")?.textContent`, "Sign in") {
		faults = append(faults, "the page says "+ask[string](t, `document.querySelector(".live").innerText`))
	}
	return faults
}

// keyed: keys lead to pages, rows and the search; and while a person types they are letters.
func keyed(c *console, r *road) (faults []string) {
	first, second := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{}), c.enqueue(receipt{1, "a@example.com"}, outbox.Options{})
	t := c.list(r, "jobs")
	expect := func(what, expression, want string) {
		if !t.within(2*time.Second, expression, want) {
			faults = append(faults, fmt.Sprintf("%s: got %s, want %s", what, ask[string](t, "String("+expression+")"), want))
		}
	}
	focused := `document.activeElement.closest("tr")?.dataset.job`
	t.press("j")
	expect("j", focused, second.String())
	t.press("j")
	expect("j again", focused, first.String())
	t.press("k")
	expect("k", focused, second.String())
	t.press("/")
	t.press("jk?.")
	expect("typed", `document.activeElement.value`, "jk?.")
	expect("a window while typing", `document.querySelectorAll("dialog").length`, "0")
	ask[bool](t, `document.activeElement.blur(), true`)
	t.press("?")
	expect("?", `document.querySelector("dialog[open] h2")?.textContent`, "Keys")
	if len(faults) == 0 { // which keys there are can be read by all
		faults = append(faults, accessible(t)...)
		t.look("light", 1280, 900)
	}
	t.do(chromedp.KeyEvent(kb.Escape))
	expect("Escape", `document.querySelectorAll("dialog").length`, "0")
	t.press("gq")
	expect("g q", `location.pathname`, "/queues")
	t.visit(r.base + "me")
	t.leave(chromedp.Click(chromedp.CSS("button[name=keys][value=off]")))
	t.press("?gj")
	expect("switched off", `location.pathname + document.querySelectorAll("dialog").length`, "/me0")
	return faults
}

// noPolls keeps pages from being read again while there is no stream.
var noPolls = []string{"soon(Math.max(poll, every))", "", `if (s === "refused" || s === "lost") soon(poll);`, ""}

// behind is a page whose machine has slept for two hours since it was loaded, and dies a worker that its browser kills.
var (
	behind = []string{`setClock(root.dataset.now);`, `setClock(root.dataset.now); skew -= 7_200_000;`}
	dies   = []string{`addEventListener("connect",`, `setTimeout(() => close(), 3000); addEventListener("connect",`}
)

// parts are those of the scripts that TestLive takes out.
var parts = []struct {
	name    string
	check   func(*console, *road) []string
	without []string // is replaced by what follows, in turns
	want    string
	always  []string // the same, in both
}{
	{"follows", follows, []string{"patch(row, c);", ""}, "the row of a job that runs says pending", nil},
	{"waits", follows, []string{`note.hidden = !fresh.size`, `note.remove()`}, "two new jobs are announced", nil},
	{"ordered", ordered, []string{"if (c.epoch < Number(row.dataset.epoch)) return;", "", "Number(to.dataset.epoch) < Number(row.dataset.epoch)", "false"}, "a late state has made it running", nil},
	{"notified", notified, []string{`name === "acted"`, "false"}, `/queues does not say "paused"`, nil},
	{"patient", patient, []string{"return !!selection &&", "return false &&"}, "the selection became", nil},
	{"still", still, []string{"if (paused) leave();", "if (paused) ;"}, "paused, six pages made", nil},
	{"still by itself", still, []string{"if (paused || busy", "if (busy"}, "paused, six pages made", nil},
	{"shared", shared, []string{"new SharedWorker(", "new NoWorker("}, "tab 7 does not open", nil},
	{"goes on", goesOn, []string{`this.#position = id;`, ""}, "it lists", nil},
	{"once", once, []string{"if (!again && ", "if ("}, "it lists", nil},
	{"whole", whole, []string{`this.#position = id;`, "", "resync: !this.#position", "resync: false"}, "of 20 jobs that run it shows", noPolls},
	{"honest", honest, []string{"const silence = 18_000", "const silence = 180_000"}, "nothing comes through, and it says live", nil},
	{"polls", polls, noPolls, "was not read again", nil},
	{"leaves", leaves, []string{"if (!there.has(id) && !stale.has(id)) stale.set(id, -1);", ";"}, "the row that left the list says pending", nil},
	{"wakes", leaves, []string{"	setClock(page?.documentElement.dataset.now);", ""}, "its clock is not the server's", behind},
	{"outlives", outlives, []string{"++unheard > deaf", "false"}, "without its worker it says", dies},
	{"demoted", demoted, noPolls, "was not read again", nil},
	{"says so", demoted, []string{"`every ${Math.max(poll, every) / 1000} s`", `"live"`}, "it says live", nil},
	{"replayed", replayed, []string{"list ? morph : adopt", "morph"}, "its attempts are", nil},
	{"solved", solved, []string{"if (!selected(n) && !typing(n)) takeAway(n);", "if (!n.contains(document.activeElement)) takeAway(n);"}, "is over, and stays", nil},
	{"out", out, []string{`banner("You are signed out.", "Sign in", "login")`, ""}, "the page says", nil},
	{"tails", tails, []string{"i.all ? !i.match || matches(i.match, c)", "i.all ? true"}, "it lists", nil},
	{"keyed", keyed, []string{`if (from.closest("input,textarea,select,[contenteditable]")) return;`, ""}, "typed", nil},
	{"selects", selects, []string{"if (some.length) sessionStorage.setItem", "if (false) sessionStorage.setItem"}, "after the theme", nil},
	{"selects through updates", selects, []string{`"pick" in list.dataset`, `"nothing" in list.dataset`}, "after 100 updates", nil},
	{"switched off", keyed, []string{`document.documentElement.dataset.keys`, `""`}, "switched off", nil},
}

// Each part of what makes pages live and of the keys works; and with that part taken out of the scripts, or of the
// answers, the same check finds that.
func TestLive(t *testing.T) {
	for _, l := range parts {
		for what, replace := range map[string][]string{"": nil, " without it": l.without} {
			if what == "" && slices.Contains([]string{"waits", "still by itself", "says so", "switched off", "selects through updates"}, l.name) {
				continue // it is the check before
			}
			if what != "" && !*planted {
				continue
			}
			replace = append(replace, l.always...)
			t.Run(l.name+what, func(t *testing.T) {
				t.Parallel()
				var found string
				tried := func(willing bool) bool {
					c := newConsole(t)
					if !willing {
						c.willing = 0
					}
					found = strings.Join(l.check(c, c.road(replace...)), "\n")
					return what == "" && found == "" || what != "" && strings.Contains(found, l.want)
				}
				// On a busy machine a check without patience may find something else before what was taken out.
				if !(what != "" && tried(false)) && !tried(true) {
					t.Errorf("found %q", found)
				}
			})
		}
	}
}

// What TestLive takes out of the scripts is in them. With -planted alone one would learn that it is not.
func TestThePartsAreThere(t *testing.T) {
	t.Parallel()
	var scripts strings.Builder
	files, err := filepath.Glob("../assets/*.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts %v, %v", files, err)
	}
	for _, name := range files {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		scripts.Write(script)
	}
	replaced := slices.Clone(unwatched)
	for _, l := range parts {
		replaced = append(append(replaced, l.without...), l.always...)
	}
	for pair := range slices.Chunk(replaced, 2) {
		if !strings.Contains(scripts.String(), pair[0]) {
			t.Errorf("no script has %q", pair[0])
		}
	}
}
