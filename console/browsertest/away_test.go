package browsertest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// ledger is what happened to jobs while somebody looked at the list of them and at Live.
type ledger struct {
	*console
	jobs, tail *tab
	old        []outbox.ID // were on the list before; each begins to run once
	fresh      []outbox.ID // came later
}

// running is an expression: how many rows show that their jobs run.
const running = `[...document.querySelectorAll("main .status")].filter((s) => s.textContent.trim() === "running").length`

// ledger opens both pages, with so many jobs on the list. It returns once Live has begun.
func (c *console) ledger(r *road, jobs int) *ledger {
	c.Helper()
	l := &ledger{console: c}
	for range jobs {
		l.old = append(l.old, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{Queue: "mail"}))
	}
	l.jobs = c.list(r, "jobs?queue=mail")
	l.tail = c.beside(l.jobs)
	l.tail.look("light", 1280, 900)
	l.tail.visit(r.base + "live")
	l.tail.await(`document.querySelector(".live").dataset.state`, "on")
	for range 20 { // a stream begins with the hub's next look
		c.enqueue(receipt{0, "a@example.com"}, outbox.Options{Queue: "other"})
		if l.tail.briefly(time.Second, `document.querySelectorAll(".tail tr[data-job]").length > 0`, "true") {
			break
		}
	}
	return l
}

// happens has the jobs from one to another begin to run, and so many new ones come.
func (l *ledger) happens(from, to, fresh int) {
	for _, id := range l.old[from:to] {
		l.claimed(id)
	}
	for range fresh {
		l.fresh = append(l.fresh, l.enqueue(receipt{2, "b@example.com"}, outbox.Options{Queue: "mail"}))
	}
}

// compared compares both pages with what has happened: nothing is missing, and nothing is there twice.
func (l *ledger) compared(within time.Duration) (faults []string) {
	if !l.jobs.within(within, running, strconv.Itoa(len(l.old))) {
		faults = append(faults, fmt.Sprintf("of %d jobs that run the list shows %d", len(l.old), ask[int](l.jobs, running)))
	}
	said := `document.querySelector(".fresh a")?.textContent ?? "nothing"`
	if want := fmt.Sprintf("%d new · show", len(l.fresh)); !l.jobs.await("("+said+")", want) {
		faults = append(faults, fmt.Sprintf("%d new jobs are announced as %s", len(l.fresh), ask[string](l.jobs, said)))
	}
	listed := `[...document.querySelectorAll(".tail tr[data-job]")].map((r) => r.dataset.job + " " + r.querySelector(".status").textContent.trim())`
	l.tail.within(5*time.Second, listed+`.length >= `+strconv.Itoa(len(l.old)+len(l.fresh)+1), "true")
	times := map[string]int{}
	for _, row := range ask[[]string](l.tail, listed) {
		times[row]++
	}
	for _, id := range l.old {
		if n := times[id.String()+" running"]; n != 1 {
			faults = append(faults, fmt.Sprintf("that a job began to run it lists %d times", n))
		}
	}
	for _, id := range l.fresh {
		if n := times[id.String()+" pending"]; n != 1 {
			faults = append(faults, fmt.Sprintf("a new job it lists %d times", n))
		}
	}
	if gaps := ask[[]string](l.tail, `[...document.querySelectorAll(".tail .gap")].map((g) => g.textContent)`); len(gaps) > 0 {
		faults = append(faults, fmt.Sprintf("it lists %q", gaps))
	}
	return faults
}

// goesOn: the process that serves the console is killed and another takes its place. The pages say so meanwhile, and
// then catch up with what has happened before, meanwhile and since.
func goesOn(c *console, r *road) (faults []string) {
	l := c.ledger(r, 30)
	l.happens(0, 10, 1)
	if err := c.process.Kill9(); err != nil {
		c.Fatal(err)
	}
	l.happens(10, 20, 3)
	for _, t := range []*tab{l.jobs, l.tail} {
		if !t.await(`document.querySelector(".live").dataset.state`, "lost") {
			faults = append(faults, "nobody serves, and it says "+ask[string](t, `document.querySelector(".live").innerText`))
		}
	}
	c.serve("--console-addr", strings.Trim(strings.TrimPrefix(c.root, "http:"), "/"))
	l.happens(20, 30, 2)
	faults = append(faults, l.compared(40*time.Second)...)
	for _, t := range []*tab{l.jobs, l.tail} {
		if !t.await(`document.querySelector(".live").dataset.state`, "on") {
			faults = append(faults, "it is served again, and it says "+ask[string](t, `document.querySelector(".live").innerText`))
		}
	}
	return faults
}

// once: a stream that is cut in the middle of what one look has found is sent all of it again.
func once(c *console, r *road) (faults []string) {
	l := c.ledger(r, 20)
	var cuts atomic.Int64
	cut := func(text []byte) int {
		if bytes.Count(text, []byte("event: job")) > 3 && cuts.Add(1) <= 3 {
			return bytes.LastIndex(text, []byte("event: job"))
		}
		return len(text)
	}
	r.cut.Store(&cut)
	for at := 0; at < 20; at += 5 {
		l.happens(at, at+5, 1)
		time.Sleep(1500 * time.Millisecond) // more than a message and the first attempt to connect wait
	}
	faults = l.compared(20 * time.Second)
	if cuts.Load() == 0 {
		faults = append(faults, "no stream was cut")
	}
	return faults
}

// demoted: a login that may have no stream any more goes on by itself, and says so.
func demoted(c *console, r *road) (faults []string) {
	l := c.ledger(r, 1)
	c.exec(`UPDATE outbox.tokens SET capabilities = array_remove(capabilities, 'admin.stream') WHERE id = $1`, c.tokenID)
	faults = r.ended(l.jobs, time.Now())
	state := `document.querySelector(".live .state").textContent`
	if !l.jobs.await(state, "every 10 s") {
		faults = append(faults, "it says "+ask[string](l.jobs, state))
	}
	if !l.tail.await(state+`.startsWith("no stream, as of")`, "true") {
		faults = append(faults, "Live says "+ask[string](l.tail, state))
	}
	opened := r.opened.Load()
	l.happens(0, 1, 1)
	if !l.jobs.within(14*time.Second, statusOf(l.old[0]), "running") {
		faults = append(faults, "the row was not read again")
	} else if !l.jobs.await(`document.querySelector(".fresh a")?.textContent`, "1 new · show") {
		faults = append(faults, "a new job is not announced")
	}
	if n := r.opened.Load() - opened; n > 0 {
		faults = append(faults, fmt.Sprintf("it asked for %d streams more", n))
	}
	return faults
}

// slept: every process of the browser stops, as those of a laptop that sleeps, and its connection goes without a word.
// When it wakes up the pages catch up.
func slept(c *console, r *road, asleep time.Duration) (faults []string) {
	profile := filepath.Join(c.TempDir(), "profile")
	own, stop, err := startBrowser(findChromium(), profile)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(stop)
	c.browser = own
	l := c.ledger(r, 30)
	l.happens(0, 10, 1)
	l.jobs.await(running, "10")
	if n := signal(profile, syscall.SIGSTOP); n < 3 {
		c.Fatalf("%d processes of the browser were stopped", n)
	}
	r.stops.Store(true)
	l.happens(10, 20, 3)
	time.Sleep(asleep)
	r.stops.Store(false) // for new connections: on the old one nothing comes any more
	signal(profile, syscall.SIGCONT)
	l.happens(20, 30, 2)
	return l.compared(15 * time.Second)
}

// signal sends a signal to each process of the browser that has a profile. It returns to how many.
func signal(profile string, s syscall.Signal) (sent int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		line, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(line, []byte("--user-data-dir="+profile)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && syscall.Kill(pid, s) == nil {
			sent++
		}
	}
	return sent
}

// unwatched replaces what watches over the stream.
var unwatched = []string{"> silence) connection.abort()", "> silence) ;"}

// A machine may sleep for longer than any part of the console waits. Without what watches over the stream, its pages
// would wait for ever for a connection that is gone.
func TestAMachineThatSleeps(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]struct {
		asleep time.Duration
		want   string
		road   []string
	}{
		"catches up":      {asleep: 2 * time.Minute},
		"without a watch": {25 * time.Second, "of 30 jobs that run the list shows", unwatched},
	} {
		if l.want != "" && !*planted {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConsole(t)
			if l.want != "" {
				c.willing = 0
			}
			found := strings.Join(slept(c, c.road(l.road...), l.asleep), "\n")
			if l.want == "" && found != "" || !strings.Contains(found, l.want) {
				t.Errorf("found %q", found)
			}
		})
	}
}
