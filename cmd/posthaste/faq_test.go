package main

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// The commands that docs/why/faq.md lists for a job that does not start print what it shows, with another id, other
// times and another version. A line that ends with … is cut there; doctor's line about the server is left out, because
// that of tests is not durable.
func TestTheFAQShowsWhatIsPrintedOfAJobThatDoesNotStart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/why/faq.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(page), "<!-- run by cmd/posthaste/faq_test.go -->\n```text\n")
	shown, _, _ = strings.Cut(shown, "```")
	if !found {
		t.Fatal("docs/why/faq.md shows no commands")
	}
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	_, logs := servingWith(t, []string{"OUTBOX_WORKER=shop-1"}, "--database-url", url, "--role", "dispatch,reap", "--webhook", "invoice.send=https://127.0.0.1:1")
	awaitReadiness(t, adminAddr(t, logs), http.StatusOK)
	awaitText(t, "yes", func() string { return ok(t, e, "workers", "list") })
	id := strings.TrimSpace(ok(t, e, "enqueue", "receipt.send"))

	commands := regexp.MustCompile(`(?m)^\$ posthaste ([^#\n]*).*\n((?:[^$\n].*\n|\n)*)`).FindAllStringSubmatch(shown, -1)
	if len(commands) != 5 {
		t.Fatalf("docs/why/faq.md shows %d commands, want five", len(commands))
	}
	for _, m := range commands {
		r := posthaste(t, e, "", strings.Fields(strings.Replace(m[1], "ID", id, 1))...)
		got, want := withoutChance(r.out), withoutChance(m[2])
		for i, line := range want {
			if kept, cut := strings.CutSuffix(line, "…"); cut && i < len(got) && strings.HasPrefix(got[i], kept) {
				got[i] = line
			}
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("posthaste %s prints (-) and docs/why/faq.md shows (+):\n%s", m[1], diff)
		}
	}
}

// withoutChance returns the lines of an output without what differs from run to run: times, durations, versions, and so
// the widths of columns.
func withoutChance(out string) (lines []string) {
	chance := regexp.MustCompile(`20\d\d-\d\d-\d\dT[\d:]+(Z|[+-]\d\d:\d\d)|\b[\d.]+ ?(µs|ms)`)
	for line := range strings.Lines(out) {
		line = chance.ReplaceAllString(strings.Join(strings.Fields(line), " "), "TIME")
		line = regexp.MustCompile(`^shop-1-[0-9a-f]{8} (\w+) \S+`).ReplaceAllString(line, "shop-1-ID $1 VERSION")
		if line != "" && !strings.HasPrefix(line, "server ") {
			lines = append(lines, line)
		}
	}
	return lines
}
