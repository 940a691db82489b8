package console_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// measured stores an hour that was measured but for its 20th to 30th minute from the end, of two tenants.
func (r *rig) measured() {
	r.t.Helper()
	r.enqueue("greet", "{}", outbox.Options{Queue: "mail"})
	r.exec(`INSERT INTO outbox.measured SELECT m, m - interval '1 min', true FROM generate_series(date_trunc('minute', now()) - interval '59 min', date_trunc('minute', now()), '1 min') AS m
		WHERE m NOT BETWEEN date_trunc('minute', now()) - interval '29 min' AND date_trunc('minute', now()) - interval '20 min'`)
	r.exec(`INSERT INTO outbox.measures SELECT at, t::uuid, q, $1, 4321, 2, 3, 120, 60, 0, 5, ARRAY[NULL, 60]
		FROM outbox.measured, (VALUES ($2, 'mail'), ($3, 'theirs')) AS p(t, q)`, evil, outbox.RootTenant.String(), tenantB.String())
	r.exec(`INSERT INTO outbox.builds VALUES ($1, now() - interval '10 min', now())`, evil)
	r.exec(`INSERT INTO outbox.audit (at, actor, act, queue, reason, request_id) VALUES (now() - interval '5 min', $1, 'queue.pause', 'mail', $1, 'r')`, evil)
}

var chartRow = regexp.MustCompile(`(?s)<table data-points.*?</table>`)

// A line of a list has a gap, too, and does not fall to zero, where nobody has counted.
func TestALineHasAGapWhereNobodyHasCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.measured()
	for _, page := range []string{"queues", "kinds"} {
		lines := regexp.MustCompile(`d="(M[^"]*L[^"]*)"`).FindAllStringSubmatch(r.get(page).is(200).Body.String(), -1)
		if len(lines) == 0 {
			t.Errorf("%s has no lines", page)
		}
		for _, line := range lines {
			if n := strings.Count(line[1], "M"); n != 2 {
				t.Errorf("%s: a line has %d parts, want 2: %s", page, n, line[1])
			}
		}
	}
}

// Charts are drawn from the table, which has each minute that was measured, and a gap where none was.
func TestChartsAreTables(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.measured()
	for page, want := range map[string]string{
		"now":                                "8 642 4 4.0/s 2.0/s 1 ms 1 ms 10.0/min 6",
		"queue?queue=mail":                   "4 321 2 2.0/s 1.0/s 1 ms 1 ms 5.0/min 3",
		"queue?queue=x":                      "0 0 0/s 0/s – – 0/min 0",
		"kind?kind=" + url.QueryEscape(evil): "8 642 4 4.0/s 2.0/s 1 ms 1 ms 10.0/min 6",
	} {
		a := r.get(page).is(http.StatusOK).has("The last hour", "As a table")
		table := a.chart()
		if n := strings.Count(table, want); n < 49 || n > 50 {
			t.Errorf("%s has %q %d times, want 50:\n%s", page, want, n, table)
		}
		if n := strings.Count(table, "– – – – – – – –"); n < 9 || n > 11 {
			t.Errorf("%s has %d minutes that nobody measured, want 10", page, n)
		}
		if !strings.Contains(a.text(), "build "+strings.ReplaceAll(evil, "\u202e\u200b", "")) || strings.Contains(a.Body.String(), "<img src=x") {
			t.Errorf("%s does not show the build as text", page)
		}
	}
	r.get("now?range=14d").is(http.StatusOK).has("The last 14 days")
	r.get("now?range=2h").is(http.StatusBadRequest)
	r.get("queues").has("at most 4 323 open")
	r.get("kinds").has("at most 8 646 open")
}

func (a answer) chart() string {
	return answer{&httptest.ResponseRecorder{Body: bytes.NewBufferString(chartRow.FindString(a.Body.String()))}, a.t}.text()
}

func TestChartsOfATenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.measured()
	b := r.as("b")
	b.get("queue?queue=theirs").has("4 321 2 2.0/s").hasNot("build", "queue.pause")
	b.get("queue?queue=mail").has(":00 0 0 0/s 0/s – – 0/min 0").hasNot("4 321")
	b.get("queue?queue=mail").hasNot("queue.pause")
	b.get("kinds").has("at most 4 323 open")
}

func TestChartsBeforeAnythingIsMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, page := range []string{"now", "queue?queue=mail", "kind?kind=mail"} {
		r.get(page).is(http.StatusOK).has("Nothing was measured in this time")
	}
}
