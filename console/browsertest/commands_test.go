package browsertest

import (
	"html"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	commandShown = regexp.MustCompile(`<code data-copy>(posthaste .*?)</code>`)
	hiddenInput  = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
	tags         = regexp.MustCompile(`<[^>]+>`)
)

// twinState describes everything that acts change, but for times and epochs.
const twinState = `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
	SELECT concat_ws(' ', 'job', id, status, queue, priority, run_at < now() + interval '1 min') AS line FROM outbox.jobs
	UNION ALL SELECT concat_ws(' ', 'closed', id, status) FROM outbox.history
	UNION ALL SELECT concat_ws(' ', 'queue', queue, paused_at IS NOT NULL, max_running) FROM outbox.queues
	UNION ALL SELECT concat_ws(' ', 'schedule', name, paused_at IS NOT NULL) FROM outbox.schedules
	UNION ALL SELECT concat_ws(' ', 'sink', sink, paused_at IS NOT NULL) FROM outbox.sinks
	UNION ALL SELECT concat_ws(' ', 'key', key, parked_at IS NOT NULL) FROM outbox.keys
	UNION ALL SELECT concat_ws(' ', 'act', act, job_id, queue, target, nullif(reason, 'why it is done')) FROM outbox.audit
		WHERE act NOT LIKE 'operation.%' AND act NOT LIKE 'token.%') AS lines`

// twinned fills a database with the same as its twin.
func (c *console) twinned() {
	c.Helper()
	c.exec(`INSERT INTO outbox.jobs (id, kind, queue, payload, status, created_at, run_at)
		SELECT ('01976f0e-7a5c-7d3e-8f4b-0000000000' || lpad(n::text, 2, '0'))::uuid, CASE WHEN n % 2 = 0 THEN 'receipt.send' ELSE 'it''s odd' END, 'mail', '{}',
			CASE WHEN n < 8 THEN 'pending' WHEN n < 12 THEN 'created' ELSE 'pending' END::outbox.job_status, now() - interval '1 h', now() + interval '2 h'
		FROM generate_series(0, 29) AS n`)
	c.exec(`UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now()
		WHERE id >= '01976f0e-7a5c-7d3e-8f4b-000000000016'`)
	c.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL, failed_at = now() - interval '10 min',
		last_error_code = 'smtp', last_error_message = 'no relay', error_fingerprint = CASE WHEN kind = 'receipt.send' THEN 'f0' ELSE 'f1' END WHERE status = 'running'`)
	c.exec(`INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('stock', interval '1 day', 'stock.sync', '{}', now() + interval '1 day')`)
	c.exec(`INSERT INTO outbox.sinks (sink, published, moved_at, top) VALUES ('orders', 1, now(), 1)`)
}

func twinJob(n string) string { return "01976f0e-7a5c-7d3e-8f4b-0000000000" + n }

// The command that a preview shows does what its form does: run on the twin of the database, it changes the same.
func TestCommandsDoWhatTheirFormsDo(t *testing.T) {
	t.Parallel()
	forms, commands := newConsole(t), newConsole(t)
	forms.twinned()
	commands.twinned()
	client := forms.signIn(forms.root)
	for _, p := range []struct{ preview, yes string }{
		{"queue-pause?queue=mail", ""},
		{"queue-resume?queue=mail", ""},
		{"schedule-pause?name=stock&tenant=" + outbox.RootTenant.String(), ""},
		{"schedule-resume?name=stock&tenant=" + outbox.RootTenant.String(), ""},
		{"sink-pause?name=orders", ""},
		{"sink-resume?name=orders", ""},
		{"job-cancel?id=" + twinJob("00"), ""},
		{"job-release?id=" + twinJob("08"), ""},
		{"job-retry?id=" + twinJob("16"), ""},
		{"job-dismiss?id=" + twinJob("17"), ""},
		{"selected-cancel?from=jobs&id=" + twinJob("01") + "&id=" + twinJob("02"), " --yes"},
		{"selected-retry?from=letters&error=f0&id=" + twinJob("18") + "&id=" + twinJob("20"), " --yes"},
		{"letters-replay?error=f0&kind=receipt.send", " --yes"},
		{"letters-dismiss?error=f1&kind=it%27s+odd", " --yes"},
		{"jobs-edit?kind=receipt.send&status=pending&set_queue=slow&set_priority=-7", " --yes"},
		{"jobs-retry?kind=it%27s+odd&since=3h", " --yes"},
		{"jobs-release?queue=mail", " --yes"},
		{"jobs-cancel?queue=slow", " --yes"},
	} {
		page := forms.page(client, p.preview)
		line := forms.shownCommand(page)
		if rated := strings.Contains(page, `id="rate"`); rated != strings.Contains(line, " --rate 10") {
			t.Errorf("%s: the form has a rate: %t; the command is %s", p.preview, rated, line)
		}
		request := forms.confirm(client, p.preview, page)
		commands.run(line + p.yes)
		want, got := forms.settled(), commands.settled()
		forms.audited(p.preview, request)
		if got != want {
			t.Fatalf("%s\n%s\nleads to\n%s\nthe form to\n%s", p.preview, line, onlyIn(got, want), onlyIn(want, got))
		}
	}
}

// page returns a page of the console.
func (c *console) page(client *http.Client, page string) string {
	c.Helper()
	res, content, err := get(client, c.root+page)
	if err != nil || res.StatusCode != http.StatusOK {
		c.Fatalf("/%s: %v, %v\n%s", page, res, err, content)
	}
	return content
}

// shownCommand returns the command of a preview.
func (c *console) shownCommand(page string) string {
	c.Helper()
	found := commandShown.FindStringSubmatch(page)
	if found == nil {
		c.Fatalf("the preview shows no command:\n%s", page)
	}
	return html.UnescapeString(tags.ReplaceAllString(found[1], ""))
}

// confirm sends the form of a preview as it is, with the reason that its command has. It returns the request's id.
func (c *console) confirm(client *http.Client, preview, page string) (request string) {
	c.Helper()
	form := url.Values{"reason": {"why it is done"}}
	_, page, _ = strings.Cut(page, `<section class="panel confirm">`)
	for _, m := range hiddenInput.FindAllStringSubmatch(page, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	if strings.Contains(page, `id="rate"`) {
		form.Set("rate", "10")
	}
	path, _, _ := strings.Cut(preview, "?")
	staying := *client
	staying.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res := c.post(&staying, c.root+path, form)
	if res.StatusCode != http.StatusSeeOther {
		c.Fatalf("/%s: the form was answered with %d", preview, res.StatusCode)
	}
	return res.Header.Get("X-Request-Id")
}

// audited checks that the audit has what a request did: by its person, with the reason, and what it changed.
func (c *console) audited(preview, request string) {
	c.Helper()
	var whole, all int
	err := c.db.QueryRow(c.Context(), `SELECT count(*) FILTER (WHERE actor = 'ada' AND reason = 'why it is done' AND (before IS NOT NULL OR after IS NOT NULL)), count(*)
		FROM outbox.audit WHERE request_id = $1`, request).Scan(&whole, &all)
	if err != nil || all == 0 || whole != all {
		c.Errorf("/%s: of %d entries of request %s, %d have its person, its reason and what changed: %v", preview, all, request, whole, err)
	}
}

// run runs a command line by a shell, on the database of the console.
func (c *console) run(line string) {
	c.Helper()
	shell := exec.CommandContext(c.Context(), "sh", "-c", `posthaste() { "$POSTHASTE" "$@"; }; `+line)
	shell.Env = append(os.Environ(), "POSTHASTE="+posthaste, "OUTBOX_DATABASE_URL="+c.db.Config().ConnString(), "USER=ops")
	if out, err := shell.CombinedOutput(); err != nil {
		c.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// settled waits until no operation is under way, and describes what acts have changed.
func (c *console) settled() (state string) {
	c.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var open int
		if err := c.db.QueryRow(c.Context(), `SELECT count(*) FROM outbox.operations WHERE finished_at IS NULL`).Scan(&open); err != nil {
			c.Fatal(err)
		}
		if open == 0 {
			break
		}
		if time.Now().After(end) {
			c.Fatal("an operation does not end")
		}
	}
	if err := c.db.QueryRow(c.Context(), twinState).Scan(&state); err != nil {
		c.Fatal(err)
	}
	return state
}

// onlyIn returns the lines of a text that another one lacks.
func onlyIn(text, other string) string {
	lines := map[string]int{}
	for line := range strings.Lines(other + "\n") {
		lines[line]++
	}
	var only strings.Builder
	for line := range strings.Lines(text + "\n") {
		if lines[line]--; lines[line] < 0 {
			only.WriteString(line)
		}
	}
	return only.String()
}
