package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// dispatch works the jobs of kind "talk" until the test ends.
func dispatch(t *testing.T, pool *pgxpool.Pool, handler dispatcher.Handler) {
	t.Helper()
	mux := new(dispatcher.Mux)
	mux.HandleRaw("talk", handler)
	d, err := dispatcher.New(pool, mux, dispatcher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// cutOff ends the sessions of a command until it says that it tries again.
func cutOff(t *testing.T, pool *pgxpool.Pool, application string, errOut *lockedBuffer) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(errOut.String(), "trying again"); time.Sleep(20 * time.Millisecond) {
		sqlExec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1 || '%' AND datname = current_database()`, application)
		if time.Now().After(deadline) {
			t.Fatalf("it does not notice that its sessions have ended: %s", errOut)
		}
	}
}

func TestJobsLogsFollowsAfterAnOutage(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString() + "&application_name=logs-cut-off"}
	id := strings.TrimSpace(ok(t, env{"DATABASE_URL": pool.Config().ConnString()}, "enqueue", "talk"))
	proceed := make(chan struct{})
	dispatch(t, pool, func(ctx context.Context, job *outbox.Claimed) error {
		err := job.Log(ctx, slog.LevelInfo, "begun")
		select {
		case <-proceed:
		case <-ctx.Done():
		}
		return errors.Join(err, job.Log(ctx, slog.LevelInfo, "done"))
	})
	out, errOut, ended := new(lockedBuffer), new(lockedBuffer), make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"posthaste", "jobs", "logs", id, "--follow"}, func(name string) string { return e[name] }, strings.NewReader(""), out, errOut)
	}()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "begun"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the first line does not come: %s", errOut)
		}
	}
	cutOff(t, pool, "logs-cut-off", errOut)
	close(proceed)
	if code := <-ended; code != exitOK || strings.Count(out.String(), "begun") != 1 || !strings.Contains(out.String(), "done") {
		t.Errorf("it ended with %d and printed %s, want both lines once: %s", code, out, errOut)
	}
}

func TestJobsLogsFollowsUntilTheJobHasEnded(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	id := strings.TrimSpace(ok(t, e, "enqueue", "talk"))
	proceed := make(chan struct{})
	dispatch(t, pool, func(ctx context.Context, job *outbox.Claimed) error {
		_ = job.Log(ctx, slog.LevelInfo, "begun\x1b[2J")
		<-proceed
		_, err := dispatcher.Step(ctx, job, "fetch", func(context.Context) (int, error) { return 7, nil })
		if err != nil {
			return err
		}
		_ = job.Progress(ctx, 5, 20, "reading")
		_ = job.Log(ctx, slog.LevelWarn, "done")
		return outbox.SaveCheckpoint(ctx, job, "here")
	})
	followed := make(chan ran, 1)
	go func() { followed <- posthasteUntil(t.Context(), e, "", "jobs", "logs", id, "--follow") }()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(ok(t, e, "jobs", "logs", id), "begun [2J") { // made harmless for a terminal
		if time.Now().After(deadline) {
			t.Fatal("the first line does not come")
		}
	}
	close(proceed)
	r := <-followed
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); r.code != exitOK || len(lines) != 2 || !strings.Contains(lines[0], "INFO  begun") || !strings.Contains(lines[1], "WARN  done") {
		t.Errorf("followed %+v, want both lines", r)
	}

	var line struct {
		At      time.Time
		Level   string
		Message string
		Line    int
	}
	last := strings.Split(strings.TrimSpace(ok(t, e, "jobs", "logs", id, "-o", "json")), "\n")[1]
	if err := json.Unmarshal([]byte(last), &line); err != nil || line.Level != "WARN" || line.Message != "done" || line.Line != 2 || line.At.IsZero() {
		t.Errorf("as JSON: %s, %v", last, err)
	}
	var shown struct {
		Progress   struct{ Current, Total int }
		Checkpoint struct{ Data string }
		Steps      []struct {
			Name   string
			Result int
		}
	}
	object := ok(t, e, "jobs", "show", id, "-o", "json")
	if err := json.Unmarshal([]byte(object), &shown); err != nil {
		t.Fatal(err)
	}
	if all := last + object; strings.Contains(all, "+05:30") {
		t.Errorf("%s has times of this machine's zone, want UTC", all)
	}
	if got, want := fmt.Sprint(shown), "{{5 20} {here} [{fetch 7}]}"; got != want {
		t.Errorf("jobs show -o json has %s, want %s", got, want)
	}
	out := ok(t, e, "jobs", "show", id)
	for _, want := range []string{"5 of 20 (25 %) reading", `"here"`, "step fetch"} {
		if !strings.Contains(out, want) {
			t.Errorf("jobs show lacks %q:\n%s", want, out)
		}
	}
	if r := posthaste(t, e, "", "jobs", "logs", outbox.NewID().String()); r.code != exitFailed || !strings.Contains(r.errOut, "not found") {
		t.Errorf("of no job: %+v, want exit status 1", r)
	}
}
