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
