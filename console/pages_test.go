package console_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestHostileTextStaysText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.evilJob(outbox.RootTenant)
	for _, page := range []string{
		"jobs", "jobs?status=dead", "job?id=" + id.String(), "job?reveal=1&id=" + id.String(), "jobs?key=%3Cimg%20src%3Dx%3E", "queues", "queue?queue=default", "queue?queue=%3Cimg%20src%3Dx%3E", "queue-pause?queue=%3Cimg%20src%3Dx%3E", "live?kind=%3Cimg%20src%3Dx%3E", "live?q=%3Cimg%20src%3Dx%3E%3A%22", "kinds", "kind?kind=evil.kind", "kind?kind=%3Cimg%3E", "jobs?q=%3Cimg%20src%3Dx%3E%3A%22",
		"letters", "letters?kind=evil.kind", "letters?code=%3Cimg%20src%3Dx%3E", "keys", "audit", "audit?actor=%3Cimg%20src%3Dx%3E",
	} {
		a := r.get(page)
		if a.Code >= 500 {
			t.Errorf("%s: got %d", page, a.Code)
		}
		for _, bad := range []string{"<img", "</script><b>", "<b>\"'"} {
			if strings.Contains(a.Body.String(), bad) {
				t.Errorf("%s has %s as HTML", page, bad)
			}
		}
	}
	r.get("job?id="+id.String()).is(200).has(evil, "1970670598291982290", "1.50", `\u0000`, "•••", "Reveal 1 masked value", "row 77").hasNot("hunter2", "hunter3")
	r.get("job?reveal=1&id="+id.String()).is(200).has("hunter2", "hunter3")
}

func TestWhatACallerMayNotSeeIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.evilJob(tenantA).String()
	r.as("b").get("job?id=" + id).is(404).has("There is no such job").hasNot("evil.kind")
	r.as("b").get("jobs").is(200).hasNot("evil.kind")
	r.as("b").get("payload?id=" + id).is(404)
	r.as("b").get("jobs?tenant=" + tenantA.String()).is(403)
	r.as("a").get("job?id="+id).is(200).has("evil.kind", "Failed attempts", "What people did to it")
	r.as("a+jobs.read").get("job?id="+id).is(200).has("evil.kind", "needs payload.read").
		hasNot("Failed attempts", "w<b>", "197067", "What people did to it", "Epoch", tenantA.String()+"</code>")
	r.as("a+jobs.read").get("jobs").is(200).has("evil.kind", "panic").hasNot("onerror")
	r.as("a+jobs.read,admin.read").get("job?id="+id).is(200).hasNot("197067", "hunter2", "row 77")

	// A result is for all who may read the job, as in the API: see docs/guides/tenants.md.
	closed := r.enqueue("greet", `"what it got"`, outbox.Options{Tenant: tenantA}).String()
	r.exec(`WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, finished_at, closed_from, lost_leases, result)
		SELECT id, tenant_id, queue, kind, 'succeeded', payload, content_type, priority, run_at, created_at, 1, max_attempts, epoch, now(), 'running', 0, '"what it left"' FROM gone`, closed)
	reader := r.as("a+jobs.read")
	reader.get("job?id=" + closed).is(200).has("what it left").hasNot("what it got")
	if got := reader.get("result?id=" + closed).is(200).Body.String(); got != `"what it left"` {
		t.Errorf("the result is %s", got)
	}
	r.as("b").get("result?id=" + closed).is(404)
}

func TestAJobSaysWhyItDoesNotRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("greet", `{}`, outbox.Options{Queue: "mail"}).String()
	r.get("job?id="+id).is(200).has("Why it does not run", "No present dispatcher works queue mail")
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w-1', 'v1', '{mail}', '{4}', '{greet}', true)`)
	r.confirm("queue-pause", map[string][]string{"queue": {"mail"}, "reason": {"the relay is down"}}).is(303)
	r.get("job?id="+id).is(200).has("paused", "posthaste queues resume mail")
	r.as("a+jobs.read").get("job?id=" + id).is(404)
	r.as("+jobs.read").get("job?id=" + id).is(200).hasNot("Why it does not run")
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) { c.ReadOnly = true })
	for _, row := range console.Table() {
		if row.Method == http.MethodPost && len(row.Needs) > 0 {
			if got := r.post(row.Path, nil).Code; got != 403 {
				t.Errorf("POST %s: got %d", row.Path, got)
			}
		}
	}
	r.post("settings", map[string][]string{"theme": {"dark"}}).is(303)
}

func TestJobsByFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mail := r.enqueue("receipt.send", `{}`, outbox.Options{Queue: "mail", Key: outbox.KeyRules{Name: "acme/%?#"}})
	other := r.enqueue("greet", `{"to":"a &lt;b"}`, outbox.Options{Hold: true})
	for query, want := range map[string][2]bool{ // whether mail and other are there
		"":                              {true, true},
		"kind=greet":                    {false, true},
		"queue=mail":                    {true, false},
		"key=acme%2F%25%3F%23":          {true, false},
		"status=created":                {false, true},
		"status=created,pending":        {true, true},
		"status=created&status=pending": {true, true},
		"payload=a+%26lt%3Bb":           {false, true},
		"payload=A":                     {false, false},
		"payload=%7B":                   {true, true},
		"since=1h":                      {true, true},
		"until=1h":                      {false, false},
		"since=2000-01-01T00:00:00Z":    {true, true},
		"tenant=" + tenantA.String():    {false, false},
		"before=" + other.String():      {true, false},
		"kind=receipt.send&status=dead": {false, false},
		"tenant=00000000-0000-0000-0000-000000000000&kind=x": {false, false},
	} {
		body := r.get("jobs?" + query).is(200).Body.String()
		if got := [2]bool{strings.Contains(body, `data-job="`+mail.String()), strings.Contains(body, `data-job="`+other.String())}; got != want {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
	}
	for _, bad := range []string{"status=x", "since=yesterday", "tenant=x", "before=x", "limit=0", "limit=201", "x=1", "kind=a&kind=b", "kind=%ff", "kind=%00", "since=99999999d", "%zz"} {
		r.get("jobs?" + bad).is(400).has("cannot be read")
	}
	for typed, want := range map[string]string{
		"kind:greet status:pending,dead": "jobs?kind=greet&status=pending%2Cdead",
		"greet":                          "jobs?kind=greet",
		"dead":                           "jobs?status=dead",
		`key:"a b" since:2h`:             "jobs?key=a+b&since=2h",
		"key:a:b":                        "jobs?key=a%3Ab",
		`payload:"a b"`:                  "jobs?payload=a+b",
		"":                               "jobs",
	} {
		q := strings.NewReplacer(" ", "%20", `"`, "%22", ":", "%3A").Replace(typed)
		if got := r.get("jobs?q=" + q).is(303).Header().Get("Location"); got != want {
			t.Errorf("%q led to %s, want %s", typed, got, want)
		}
	}
	for _, page := range []string{"jobs?payload=x", "jobs-export?format=csv&payload=x"} { // with its capability only
		r.as("a+jobs.read,admin.read").get(page).is(403).has("payload.read")
	}
	r.as("all").get("jobs?payload=x").is(200).hasNot("All that match")
	r.get("jobs?q=status%3Anonsense").is(400).has("“nonsense” is no status", "retrying")
	if got := r.get("find?q=" + mail.String()).is(303).Header().Get("Location"); got != "job?id="+mail.String() {
		t.Errorf("an id led to %s", got)
	}
}

func TestPagesOfJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want := map[string]bool{}
	for range 7 {
		want[r.enqueue("greet", `{}`, outbox.Options{}).String()] = true
	}
	id, next := regexp.MustCompile(`data-job="([^"]*)"`), regexp.MustCompile(`href="(jobs\?[^"]*)" rel="next"`)
	page, pages := "jobs?limit=3", 0
	for ; page != ""; pages++ {
		body := r.get(page).is(200).Body.String()
		for _, m := range id.FindAllStringSubmatch(body, -1) {
			if !want[m[1]] {
				t.Errorf("job %s is there twice", m[1])
			}
			delete(want, m[1])
		}
		page = ""
		if m := next.FindStringSubmatch(body); m != nil {
			page = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	if len(want) > 0 || pages != 3 {
		t.Errorf("%d pages left out %v", pages, want)
	}
}

func TestPayloadsAreAsTheyAreStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stored := `{"b": 1970670598291982290,"a":[1.500,1E+2,"\u00e9\/"],"b":null}`
	id := r.enqueue("greet", stored, outbox.Options{}).String()
	a := r.get("payload?id=" + id).is(200)
	if got := a.Body.String(); got != stored {
		t.Errorf("got %s, want %s", got, stored)
	}
	if h := a.Header(); h.Get("Content-Type") != "application/octet-stream" || h.Get("Content-Disposition") != "attachment; filename="+id+"-payload.json" ||
		!strings.Contains(h.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("got %v", h)
	}
	r.get("job?id="+id).is(200).has("1970670598291982290", "1.500", "1E+2", `"\u00e9\/"`)
	large := `{"text":"` + strings.Repeat("x", 2<<20) + `"}`
	id = r.enqueue("greet", large, outbox.Options{}).String()
	a = r.get("job?id=" + id).is(200).has("Show all")
	if a.Body.Len() > 100<<10 {
		t.Errorf("the page of a large job has %d bytes", a.Body.Len())
	}
	if got := r.get("job?whole=1&id=" + id).is(200).Body.Len(); got < 2<<20 {
		t.Errorf("all of it has %d bytes", got)
	}
	binary, err := outbox.Enqueue(t.Context(), r.db, outbox.Raw{KindName: "proto", Payload: []byte{0, 1, 0xff}, ContentType: "application/x-protobuf"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.get("job?id=" + binary.String()).is(200).has("00 01 ff")
}

// Every status with what may be missing missing, and with all of it.
func TestEveryStatusHasItsPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, status := range []string{"created", "pending", "retrying", "dead", "succeeded", "cancelled", "expired"} {
		id := r.enqueue("greet", `{}`, outbox.Options{Hold: status == "created"})
		switch status {
		case "retrying", "dead", "succeeded":
			r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
			r.get("job?id="+id.String()).is(200).has("Running for", "on w", "whose lease lasts until")
		}
		switch status {
		case "retrying", "dead":
			r.exec(`UPDATE outbox.jobs SET status = $2::text::outbox.job_status, epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, run_at = now() + interval '1 h', failed_at = CASE WHEN $2::text = 'dead' THEN clock_timestamp() END WHERE id = $1`, id, status)
		case "succeeded", "cancelled", "expired":
			r.exec(`WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
				INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, finished_at, closed_from, lost_leases)
				SELECT id, tenant_id, queue, kind, $2::text::outbox.job_status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, now(), status, 0 FROM gone`, id, status)
		}
		r.get("job?id="+id.String()).is(200).has(status, id.String())
		r.get("jobs?status=" + status).is(200).has(status)
	}
}

func TestAnyPathWillDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("greet", `{}`, outbox.Options{}).String()
	links := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	for name, mount := range map[string]struct {
		prefix  string
		handler http.Handler
	}{
		"below, as it is":      {"/a/b/", r.handler},
		"deep below, stripped": {"/a/b/c/", http.StripPrefix("/a/b/c", r.handler)},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(mount.handler)
			defer server.Close()
			for _, page := range []string{"jobs", "job?id=" + id, "me", "login", "nothing", "jobs?limit=x", "queues", "queue?queue=default", "kinds", "kind?kind=greet", "queue-limits?queue=a"} {
				req := httptest.NewRequestWithContext(t.Context(), "GET", mount.prefix+page, nil)
				for _, c := range r.cookies() {
					req.AddCookie(c)
				}
				w := httptest.NewRecorder()
				mount.handler.ServeHTTP(w, req)
				for _, m := range links.FindAllStringSubmatch(w.Body.String(), -1) {
					to := strings.ReplaceAll(m[1], "&amp;", "&")
					if strings.HasPrefix(to, "/") || strings.Contains(to, "//") {
						t.Errorf("%s leads to %s, want a relative URL", page, to)
					}
					if strings.HasPrefix(to, "#") || to == page || to == "settings" || to == "logout" || to == "queue-limits" {
						continue
					}
					at, err := req.URL.Parse(to)
					if err != nil {
						t.Fatal(err)
					}
					again := httptest.NewRequestWithContext(t.Context(), "GET", at.String(), nil)
					for _, c := range r.cookies() {
						again.AddCookie(c)
					}
					w := httptest.NewRecorder()
					if mount.handler.ServeHTTP(w, again); w.Code >= 400 && !strings.Contains(w.Body.String(), "No job is selected") {
						t.Errorf("%s leads to %s, which answers %d", page, to, w.Code)
					}
				}
			}
		})
	}
}

func TestAssets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	url := regexp.MustCompile(`assets/[0-9a-f]+/app\.css`).FindString(r.get("me").Body.String())
	req := httptest.NewRequestWithContext(t.Context(), "GET", "/"+url, nil)
	req.Header.Set("Accept-Encoding", "gzip")
	a := r.send(req).is(200)
	if got := a.Header().Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control is %q", got)
	}
	if _, err := gzip.NewReader(bytes.NewReader(a.Body.Bytes())); err != nil {
		t.Error(err)
	}
	r.as("").get("assets/0000/app.css").is(404)
	r.as("").get("assets/../routes.go").is(404)
	// All of ours: a person who goes through the console loads each of them once.
	for pattern, most := range map[string]int{"*.css": 8 << 10, "*.js": 25 << 10} {
		all, err := filepath.Glob(filepath.Join("assets", pattern))
		if err != nil || len(all) < 2 {
			t.Fatalf("%d files are %s: %v", len(all), pattern, err)
		}
		sum := 0
		for _, name := range all {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
			_, _ = w.Write(text)
			_ = w.Close()
			sum += b.Len()
		}
		if t.Logf("%d files %s: %d bytes compressed", len(all), pattern, sum); sum > most {
			t.Errorf("%s have %d bytes compressed, want at most %d", pattern, sum, most)
		}
	}
}

// What is copied from npm is what the list says, and all of it.
func TestVendoredFilesAreThoseOfTheList(t *testing.T) {
	t.Parallel()
	list, err := os.Open("assets/vendor.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	listed := map[string]bool{}
	for lines := bufio.NewScanner(list); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if len(fields) != 4 {
			t.Fatalf("%q has %d fields", lines.Text(), len(fields))
		}
		content, err := os.ReadFile(filepath.Join("assets/vendor", fields[2]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != fields[3] {
			t.Errorf("%s is not what the list says", fields[2])
		}
		listed[fields[2]] = true
	}
	entries, err := os.ReadDir("assets/vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			t.Errorf("%s is not in the list", e.Name())
		}
	}
	if len(listed) < 2 {
		t.Error("this looks at the wrong place")
	}
}

func TestADatabaseThatIsAway(t *testing.T) {
	nowhere, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	gone := newRig(t, func(c *console.Config) { c.Pool = nowhere })
	a := gone.get("jobs").is(503).has("The database cannot be reached", "tries again in 4 seconds")
	if a.Header().Get("Refresh") != "4" || !strings.Contains(a.text(), a.Header().Get("X-Request-Id")) || a.Header().Get("Retry-After") == "" {
		t.Errorf("got %v: %s", a.Header(), a.text())
	}
	gone.get("me").is(503) // nobody knows whether the session was ended
	gone.as("").get("login").is(200)
	r := newRig(t)
	cookies := r.cookies()
	r.exec(`ALTER TABLE outbox.jobs RENAME TO elsewhere`)
	r.get("jobs").is(503).has("not migrated", "posthaste migrate up")
	r.exec(`ALTER TABLE outbox.elsewhere RENAME TO jobs`)
	req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs", nil)
	for _, c := range cookies {
		req.AddCookie(c)
	}
	r.send(req).is(200)
}

// What a browser that was never here asks for: the login, the largest of the pages that people begin with, and every
// file that is served, as compressed as browsers take it.
func TestTheFirstVisitIsSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.evilJob(outbox.RootTenant)
	for range 60 {
		r.enqueue("greet", `{"to": "ada@example.com"}`, outbox.Options{})
	}
	r.exec(`INSERT INTO outbox.measured SELECT m, m - interval '1 min', true FROM generate_series(date_trunc('minute', now()) - interval '1 h', date_trunc('minute', now()), '1 min') AS m`)
	r.exec(`INSERT INTO outbox.measures SELECT at, NULL, 'default', 'greet', 1000 * random(), 10 * random(), 3, 1000 * random(), 1000 * random(), 3, 1, ARRAY[NULL, 40, 300] FROM outbox.measured`)
	cookies := r.cookies()
	compressed := func(address string) int {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/"+address, nil)
		req.Header.Set("Accept-Encoding", "gzip")
		for _, c := range cookies {
			req.AddCookie(c)
		}
		return r.send(req).is(200).Body.Len()
	}
	var files, ofCharts int
	base := regexp.MustCompile(`assets/[0-9a-f]+/`).FindString(r.get("me").Body.String())
	err := filepath.WalkDir("assets", func(name string, d fs.DirEntry, err error) error {
		name = strings.TrimPrefix(name, "assets/")
		switch path.Ext(name) {
		case ".css", ".js", ".svg":
			size := compressed(base + name)
			t.Logf("%s: %d bytes", name, size)
			if strings.HasPrefix(name, "charts") || strings.HasPrefix(name, "vendor/uPlot") {
				ofCharts += size
			} else {
				files += size
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	first := compressed("login")
	for address, most := range map[string]int{"problems": 10 << 10, "jobs": 12 << 10, "job?id=" + id.String(): 14 << 10} {
		size := compressed(address)
		if t.Logf("%s: %d bytes", address, size); size > most {
			t.Errorf("%s has %d bytes compressed, want at most %d", address, size, most)
		}
		first = max(first, size+compressed("login"))
	}
	charted := compressed("now")
	t.Logf("without charts %d bytes, with charts %d", files+first, files+ofCharts+first+charted)
	if files+first > 60<<10 {
		t.Errorf("the first visit takes %d bytes, want at most 60 KB", files+first)
	}
	if all := files + ofCharts + first + charted; all > 85<<10 {
		t.Errorf("the first visit with charts takes %d bytes, want at most 85 KB", all)
	}
	if files < 10<<10 || ofCharts < 10<<10 {
		t.Error("this looks at the wrong place")
	}
}
