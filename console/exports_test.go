package console_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"html"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What an act has removed is said, and the file has what changed whole.
func TestTheAuditSaysAllThatChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", 90)
	r.exec(`INSERT INTO outbox.audit (actor, act, tenant_id, queue, before, after)
		VALUES ('ada', 'key.unblock', $1, 'mail', jsonb_build_object('park_at', 'soon', 'note', $2::text, 'payload_sha256', 'abc', 'operation', NULL), jsonb_build_object('retried', 2, 'note', 'y'))`, tenantA, long)
	for _, who := range []*rig{r.as("all"), r.as("a")} {
		who.get("audit").is(200).has("park_at soon → removed", "retried 2", strings.Repeat("x", 60)+"… → y").
			hasNot("operation  → removed")
		who.get("audit-export?format=csv").is(200).has(long, `""park_at"": ""soon""`, `""retried"": 2`, "abc")
	}
	r.as("a+jobs.read,admin.read").get("audit").is(200).has("park_at soon → removed").hasNot("payload_sha256")
	r.as("a+jobs.read,admin.read").get("audit-export?format=jsonl").is(200).has(long).hasNot("abc", "payload_sha256")
}

// A hash is shown for what it says: that something changed. And what changed far behind is not taken for unchanged.
func TestTheAuditSaysWhatHashesMean(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", 80)
	for act, change := range map[string][2]string{
		"schedule.create": {"", `{"kind": "new", "payload_sha256": "hash-one", "headers_sha256": "hash-three"}`},
		"schedule.change": {`{"kind": "old", "payload_sha256": "hash-one", "headers_sha256": "hash-three"}`, `{"kind": "new", "payload_sha256": "hash-two", "headers_sha256": "hash-three"}`},
		"schedule.delete": {`{"kind": "new", "payload_sha256": "hash-one", "headers_sha256": "hash-three"}`, ""},
		"job.edit":        {`{"note": "` + long + `1"}`, `{"note": "` + long + `2"}`},
	} {
		r.exec(`INSERT INTO outbox.audit (actor, act, target, tenant_id, before, after) VALUES ('ada', $1, 's', $2, nullif($3, '')::jsonb, nullif($4, '')::jsonb)`,
			act, tenantA, change[0], change[1])
	}
	r.as("a").get("audit").is(200).has("kind old → new, payload changed").hasNot("_sha256", "hash-", "headers changed")
	r.as("a").get("audit?act=job.edit").is(200).has("note " + long[:60] + "… → " + long[:60] + "…")
}

// lines reads an export: the first row has the names.
func (a answer) lines() [][]string {
	a.t.Helper()
	rows, err := csv.NewReader(a.is(200).Body).ReadAll()
	if err != nil {
		a.t.Fatal(err)
	}
	return rows
}

func TestListsAreExported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const formula = `=HYPERLINK("http://evil.example","x")`
	r.exec(`INSERT INTO outbox.jobs (id, kind, payload, status, failed_at, last_error_code, last_error_message, tenant_id)
		SELECT outbox.uuid_v7(), $1, 'secret', 'dead', now(), 'smtp', $2, $3 FROM generate_series(1, 450)`, formula, evil+"\n\"quoted\"", tenantB)
	r.enqueue("greet", `{"a":"secret"}`, outbox.Options{Tenant: tenantA})
	r.exec(`INSERT INTO outbox.audit (actor, act, reason, tenant_id) VALUES ('@ada', 'x.y', '+1', $1)`, tenantB)

	for page, want := range map[string]int{
		"jobs-export?format=csv": 451, "jobs-export?format=csv&status=dead": 450, "jobs-export?format=csv&kind=greet": 1,
		"letters-export?format=csv": 450, "letters-export?format=csv&kind=x": 0, "audit-export?format=csv": 1,
	} {
		a := r.get(page)
		if strings.Contains(a.Body.String(), "secret") {
			t.Errorf("%s has payloads", page)
		}
		rows := a.lines()
		seen := map[string]bool{}
		for _, row := range rows[1:] {
			seen[row[0]] = true
			for _, cell := range row {
				if strings.ContainsRune("=+-@", []rune(cell + " ")[0]) {
					t.Fatalf("%s: a spreadsheet calculates %q", page, cell)
				}
			}
		}
		if len(rows)-1 != want || len(seen) != want {
			t.Errorf("%s has %d rows, %d of them different, want %d", page, len(rows)-1, len(seen), want)
		}
		if got := a.Header().Get("Content-Disposition"); !strings.HasPrefix(got, "attachment; filename=") {
			t.Errorf("%s: Content-Disposition is %q", page, got)
		}
	}
	letter := r.get("letters-export?format=csv").lines()[1]
	if letter[3] != "'"+formula || letter[10] != evil+"\n\"quoted\"" {
		t.Errorf("got %q", letter)
	}
	var object struct {
		Kind, Error_message string
		Attempt             *int
	}
	text, _, _ := strings.Cut(r.get("letters-export?format=jsonl").is(200).Body.String(), "\n")
	if err := json.Unmarshal([]byte(text), &object); err != nil || object.Kind != formula || object.Attempt == nil || object.Error_message != evil+"\n\"quoted\"" {
		t.Errorf("got %s: %v", text, err)
	}

	// In the order of the list, page after page.
	var listed []string
	for page := "jobs?limit=200"; page != ""; {
		body := r.get(page).is(200).Body.String()
		for _, m := range regexp.MustCompile(`<tr data-job="([^"]+)"`).FindAllStringSubmatch(body, -1) {
			listed = append(listed, m[1])
		}
		page = ""
		if next := regexp.MustCompile(`href="(jobs\?[^"]*)" rel="next"`).FindStringSubmatch(body); next != nil {
			page = html.UnescapeString(next[1])
		}
	}
	var asCSV, asLines []string
	for _, row := range r.get("jobs-export?format=csv").lines()[1:] {
		asCSV = append(asCSV, row[0])
	}
	for line := range strings.Lines(r.get("jobs-export?format=jsonl").is(200).Body.String()) {
		var job struct{ ID string }
		if err := json.Unmarshal([]byte(line), &job); err != nil {
			t.Fatal(err)
		}
		asLines = append(asLines, job.ID)
	}
	if len(listed) != 451 || !slices.Equal(asCSV, listed) || !slices.Equal(asLines, listed) {
		t.Errorf("the list has %d jobs, the files %d and %d, or they are in another order", len(listed), len(asCSV), len(asLines))
	}

	a := r.as("a")
	if rows := a.get("jobs-export?format=csv").lines(); len(rows) != 2 || rows[1][3] != "greet" {
		t.Errorf("tenant A is given %q", rows)
	}
	if rows := a.get("letters-export?format=csv").lines(); len(rows) != 1 {
		t.Errorf("tenant A is given %q", rows)
	}
	if rows := a.get("audit-export?format=csv").lines(); len(rows) != 1 {
		t.Errorf("tenant A is given %q", rows)
	}
	limited := r.as("all+jobs.read")
	if text := limited.get("jobs-export?format=csv").is(200).Body.String(); strings.Contains(text, "quoted") || strings.Contains(text, "attempt") {
		t.Error("without admin.read the export has errors' messages, or attempts")
	}
	limited.get("letters-export?format=csv").is(403)
	limited.get("audit-export?format=csv").is(403)
	r.get("jobs-export?format=xls").is(400)
	r.get("jobs-export?format=csv&status=x").is(400)
	r.get("jobs?status=dead").has("Export, up to 10\u202f000 rows: CSV JSON lines")
}

// What the audit has of payloads and headers takes payload.read, on its page, on a job's and in an export.
func TestTheAuditHasNoPayloadsWithoutTheCapability(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	job := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`INSERT INTO outbox.audit (actor, act, target, tenant_id, job_id, before, after) VALUES ('ada', 'schedule.change', 's', $1, $2,
		'{"headers": {"x-secret": "hunter2"}, "payload_sha256": "abc"}', '{"headers": {"x-secret": "hunter3"}, "payload_sha256": "def"}')`, tenantA, job)
	for _, page := range []string{"audit", "audit-export?format=csv", "audit-export?format=jsonl", "job?id=" + job.String()} {
		for token, sees := range map[string]bool{"a": true, "a+admin.read,jobs.read": false} {
			text := r.as(token).get(page).is(200).Body.String()
			if strings.Contains(text, "hunter3") != sees || strings.Contains(text, "payload changed") != sees && !strings.Contains(page, "jsonl") {
				t.Errorf("%s to %s: %s", page, token, text)
			}
		}
	}
}

// A spreadsheet splits lines where its language does: no cell that comes of it is a formula.
func TestAnExportHasNoFormulaForAnyReader(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`x;=1+1`, `x, y;"=1+1"`, "x\n=1+1", "x\r\n \"@a\";+1", "x\t=1", ";;;-1", `x;;=1`, `"=1`, "a;＝1"} {
		line := console.CSVLine("id", text, "end")
		for _, comma := range []rune{',', ';', '\t'} {
			c := csv.NewReader(strings.NewReader(line))
			c.Comma, c.LazyQuotes, c.FieldsPerRecord = comma, true, -1
			rows, err := c.ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				for _, cell := range row {
					if cell = strings.TrimLeft(cell, "\" "); cell != "" && strings.ContainsRune("=+-@＝＋－＠", []rune(cell)[0]) && comma != ',' {
						t.Errorf("%q, split at %q, calculates %q", text, comma, cell)
					}
				}
			}
		}
	}
	if got := console.CSVLine("a;b", "x\ny", "1 = 1; 2 - 1"); got != "a;b,\"x\ny\",1 = 1; 2 - 1\n" {
		t.Errorf("what is harmless was changed: %q", got)
	}
}

// timed is a browser to which each part of an answer has to be written until a time.
type timed struct {
	*httptest.ResponseRecorder
	until []time.Time
}

func (w *timed) SetWriteDeadline(t time.Time) error {
	w.until = append(w.until, t)
	return nil
}

// An export may take many pages until it finds what is meant: the time of one page does not end it.
func TestAnExportHasTheTimeOfItsPages(t *testing.T) {
	t.Parallel()
	w := &timed{ResponseRecorder: httptest.NewRecorder()}
	pages := [][][]string{nil, {{"a"}}, nil, {{"b"}, {"c"}}}
	asked := 0
	err := console.Exported(w, time.Minute, func(ctx context.Context) ([][]string, bool, error) {
		asked++
		if _, bounded := ctx.Deadline(); asked > 1 && (bounded || ctx.Err() != nil) {
			t.Errorf("page %d has the time of the first one", asked)
		}
		return pages[asked-1], asked < len(pages), nil
	})
	if got := w.Body.String(); err != nil || got != "id\na\nb\nc\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if len(w.until) != len(pages) || !w.until[len(pages)-1].After(w.until[0]) {
		t.Errorf("the pages have to be written until %v, want each within its own time", w.until)
	}
}

func TestAnExportHasABound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.jobs (id, kind, payload) SELECT outbox.uuid_v7(), 'k', '' FROM generate_series(1, 10100)`)
	if text := r.get("jobs-export?format=jsonl").is(200).Body.String(); strings.Count(text, "\n") != 10_001 || !strings.HasSuffix(text, "\n{\"only_the_first\":10000}\n") {
		t.Errorf("the lines end with %q", text[max(0, len(text)-60):])
	}
}

// A list has more rows than a file may have. The file says in its last line that it is not the whole list.
func TestAFileSaysThatItIsNotTheWholeList(t *testing.T) {
	t.Parallel()
	for rows, want := range map[int]string{9_999: "x\n", 10_000: "x\n", 10_001: "only the first 10000 rows are here\n", 10_200: "only the first 10000 rows are here\n"} {
		left := rows
		w := httptest.NewRecorder()
		err := console.Exported(w, time.Minute, func(context.Context) (page [][]string, more bool, err error) {
			for range min(left, 200) {
				page = append(page, []string{"x"})
			}
			left -= len(page)
			return page, len(page) > 0, nil // as a page that is full cannot know that it is the last
		})
		if body := w.Body.String(); err != nil || !strings.HasSuffix(body, "\n"+want) || strings.Count(body, "x\n") != min(rows, 10_000) {
			t.Errorf("%d rows: the file ends with %q, %v; want %q", rows, body[max(0, len(body)-60):], err, want)
		}
	}
}

// Few exports are under way at once: they read lists to their end, and few rows may match. However many those of
// tenants begin, an operator of all tenants gets one.
func TestFewExportAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		who  string
		want string
	}{
		{"ada", ""},
		{"tenant1 tenant2 tenant3", ""},
		{"tenant1 tenant2 tenant3 ada", ""},
		{"tenant1 tenant2 tenant3 tenant4", "Too many files"},
		{"tenant1 tenant2 tenant3 ada ben", "Too many files"},
		{"ada ben eve zoe", ""},
		{"ada ada", "Too many files"},
		{"ada ben eve zoe kim", "Too many files"},
	} {
		if err := console.ExportedAtOnce(strings.Fields(c.who)...); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s export at once: %v; want %q", c.who, err, c.want)
		}
	}
}

// An export of few among very many rows leaves the database pauses, and ends with what it has found.
func TestAnExportOfFewAmongManyEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, begun, pages := httptest.NewRecorder(), time.Now(), 0
		err := console.Exported(w, time.Minute, func(context.Context) ([][]string, bool, error) {
			time.Sleep(30 * time.Millisecond) // as a page of few among many
			if pages++; pages == 3 {
				return [][]string{{"x"}}, true, nil
			}
			return nil, true, nil
		})
		took := time.Since(begun)
		if body := w.Body.String(); err != nil || body != "id\nx\nonly the first 1 rows are here\n" || took > 6*time.Minute {
			t.Errorf("after %s the file is %q, %v", took, body, err)
		}
		if busy := time.Duration(pages) * 30 * time.Millisecond; busy > took*6/10 {
			t.Errorf("the database was read from for %s of %s", busy, took)
		}
	})
}
