package main

import (
	"context"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAnActByFilterShowsABarAndAsksOnATerminal(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	stored(t, db, 120, "greet", outbox.Options{})
	ours, its := terminal(t)
	shown := shownOn(ours)
	cancel := func(answer string, args ...string) (code int, out string) {
		t.Helper()
		if _, err := ours.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		var printed strings.Builder
		getenv := func(name string) string { return env{"DATABASE_URL": db.Config().ConnString()}[name] }
		code = run(context.Background(), append([]string{"posthaste", "jobs", "cancel", "--kind", "greet"}, args...), getenv, its, &printed, its)
		return code, printed.String()
	}
	if code, out := cancel("n\n"); code != exitFailed || out != "" {
		t.Errorf("after a no: exit status %d, %q", code, out)
	}
	awaitText(t, "cancel 120 jobs? [y/N] ", shown.String)
	if code, out := cancel("", "--yes"); code != exitOK || out != "cancel: 120 done, 0 passed over\n" {
		t.Errorf("with --yes: exit status %d, %q", code, out)
	}
	all := awaitText(t, "100 % 120 of 120", shown.String)
	if !strings.Contains(all, " 83 % 100 of 120") {
		t.Errorf("the bar was %q, want it after the first part, too", all)
	}
	if strings.Count(all, "[y/N]") != 1 {
		t.Errorf("--yes was asked: %q", all)
	}
}

// While the question stands, a dead letter is run again and dies once more, for another reason. The answer is not about
// that.
func TestAYesIsToTheJobsAsTheyWereFound(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		kind := name[:4] + "-again"
		dead(t, db, kind, 103)
		ours, its := terminal(t)
		shown := shownOn(ours)
		var printed strings.Builder
		code := make(chan int)
		go func() {
			code <- run(context.Background(), []string{"posthaste", "jobs", "retry", "--kind", kind}, func(name string) string { return way[name] }, its, &printed, its)
		}()
		awaitText(t, "retry 103 jobs? [y/N] ", shown.String)
		sqlExec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 2, last_error_code = 'other' WHERE id = (SELECT id FROM outbox.jobs WHERE kind = $1 ORDER BY id LIMIT 1)`, kind)
		if _, err := ours.WriteString("y\n"); err != nil {
			t.Fatal(err)
		}
		if got := <-code; got != exitOK || printed.String() != "retry: 102 done, 1 passed over\n" {
			t.Errorf("%s: exit status %d, %q, want the one that died again left", name, got, printed.String())
		}
		if left := rows(t, direct, "dlq", "list", "--kind", kind); len(left) != 1 {
			t.Errorf("%s: %d dead letters are left, want 1", name, len(left))
		}
	}
}
