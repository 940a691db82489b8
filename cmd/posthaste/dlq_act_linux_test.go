package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// shownOn returns what a terminal shows, from now on.
func shownOn(ours *os.File) *lockedBuffer {
	shown := new(lockedBuffer)
	go func() { // ends when our end is closed
		var b [4096]byte
		for {
			n, err := ours.Read(b[:])
			_, _ = shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	return shown
}

// What dies while the question stands is not what the answer is about.
func TestAYesIsToTheDeadLettersThatWereCounted(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for _, act := range []string{"replay", "dismiss"} {
			kind := name[:4] + "-" + act
			dead(t, db, kind, 3)
			ours, its := terminal(t)
			shown := shownOn(ours)
			var printed strings.Builder
			code := make(chan int)
			go func() {
				code <- run(context.Background(), []string{"posthaste", "dlq", act, "--kind", kind}, func(name string) string { return way[name] }, its, &printed, its)
			}()
			awaitText(t, fmt.Sprintf("%s 3 dead letters? [y/N] ", act), shown.String)
			sqlExec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, failed_at) SELECT outbox.uuid_v7(), $1, '{}', 'dead', 2, 1, now() FROM generate_series(1, 50)`, kind)
			if _, err := ours.WriteString("y\n"); err != nil {
				t.Fatal(err)
			}
			if got := <-code; got != exitOK || printed.String() != act+": 3 done, 0 passed over\n" {
				t.Errorf("%s, %s: exit status %d, %q, want the three that were asked about", name, act, got, printed.String())
			}
			if left := rows(t, direct, "dlq", "list", "--kind", kind, "--limit", "100"); len(left) != 50 {
				t.Errorf("%s, %s: %d dead letters are left, want the 50 that came later", name, act, len(left))
			}
		}
	}
}

// The question is asked also if the errors go to a file.
func TestTheQuestionIsOnTheTerminalWhereverErrorsGo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, errs := range map[string]string{"file": filepath.Join(t.TempDir(), "err.log"), "null": os.DevNull} {
		dead(t, db, name, 3)
		ours, its := terminal(t)
		shown := shownOn(ours)
		errLog, err := os.OpenFile(errs, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = errLog.Close() }()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "dlq", "dismiss", "--kind", name)
		cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL="+db.Config().ConnString())
		cmd.Stdin, cmd.Stdout, cmd.Stderr = its, its, errLog
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill() }() // it has ended unless the test failed
		awaitText(t, "dismiss 3 dead letters? [y/N] ", shown.String)
		if _, err := ours.WriteString("y\n"); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("2>%s: %v", errs, err)
		}
		awaitText(t, "dismiss: 3 done", shown.String)
	}
}

// A sink publishes while the question stands. What a yes then skips is what it has not published yet, and nothing is
// published again.
func TestAYesToASkipPublishesNothingAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	way := env{"DATABASE_URL": db.Config().ConnString()}
	for range 4 {
		ok(t, way, "publish", "order.paid", `{}`)
	}
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	for _, tt := range []struct {
		top       int
		code      int
		text      string
		afterward int
	}{
		{1, exitOK, "orders goes on behind 3, from 1: 2 events are not published\n", 3},
		{4, exitFailed, "it is at 4: the sink has reached or passed that position meanwhile", 4},
	} {
		sqlExec(t, db, `UPDATE outbox.sinks SET top = 0`)
		ours, its := terminal(t)
		shown := shownOn(ours)
		var printed strings.Builder
		code := make(chan int)
		go func() {
			code <- run(context.Background(), []string{"posthaste", "relay", "seek", "orders", "--to", "3"}, func(name string) string { return way[name] }, its, &printed, its)
		}()
		awaitText(t, "skip 3 events? [y/N] ", shown.String)
		sqlExec(t, db, `UPDATE outbox.sinks SET top = $1`, tt.top)
		if _, err := ours.WriteString("y\n"); err != nil {
			t.Fatal(err)
		}
		if got := <-code; got != tt.code {
			t.Errorf("exit status %d, want %d", got, tt.code)
		}
		if tt.code == exitOK && printed.String() != tt.text {
			t.Errorf("it printed %q, want %q", printed.String(), tt.text)
		} else if tt.code != exitOK {
			awaitText(t, tt.text, shown.String)
		}
		var top int
		if err := db.QueryRow(t.Context(), `SELECT top FROM outbox.sinks`).Scan(&top); err != nil || top != tt.afterward {
			t.Errorf("the sink is at %d, %v, want %d", top, err, tt.afterward)
		}
	}
}

// What comes to block a key while the question stands is not what the answer is about: then nothing is done.
func TestAYesIsToTheLettersThatBlockTheKey(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for _, tenant := range []string{outbox.RootTenant.String(), "00000000-0000-0000-0000-00000000000a"} {
			key := name[:4] + tenant
			block := func(n int) {
				t.Helper()
				sqlExec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, key, ordered, status, epoch, attempt, failed_at)
					SELECT outbox.uuid_v7(), $1, 'x', '{}', $2, true, 'dead', 2, 1, now() FROM generate_series(1, $3::integer)`, tenant, key, n)
			}
			block(2)
			ours, its := terminal(t)
			shown := shownOn(ours)
			var printed strings.Builder
			code := make(chan int)
			go func() {
				code <- run(context.Background(), []string{"posthaste", "keys", "unblock", key, "--tenant", tenant}, func(name string) string { return way[name] }, its, &printed, its)
			}()
			awaitText(t, "up to 2 jobs? [y/N] ", shown.String)
			block(1)
			if _, err := ours.WriteString("y\n"); err != nil {
				t.Fatal(err)
			}
			if got := <-code; got != exitFailed || printed.String() != "" {
				t.Errorf("%s: exit status %d, %q, want 1", name, got, printed.String())
			}
			awaitText(t, "ther dead letters block", shown.String)
			if left := rows(t, direct, "dlq", "list", "--key", key, "--tenant", tenant); len(left) != 3 {
				t.Errorf("%s: %d dead letters are left, want all 3", name, len(left))
			}
			ok(t, way, "keys", "unblock", key, "--tenant", tenant, "--yes")
			if left := rows(t, direct, "dlq", "list", "--key", key, "--tenant", tenant); len(left) != 0 {
				t.Errorf("%s: %d dead letters are left, want none", name, len(left))
			}
		}
	}
}

// A letter that somebody retries after the look at it, and before the act, is no dead letter any more.
func TestAnActOnALetterKeepsToDeadLetters(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for _, act := range []string{"replay", "dismiss"} {
			kind := name[:4] + "-" + act
			ids := dead(t, db, kind, 2)
			id := ids[0]
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := tx.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = 0, failed_at = NULL WHERE id = $1`, id); err != nil {
				t.Fatal(err)
			}
			done := make(chan ran, 1)
			go func() { done <- posthaste(t, way, "", "dlq", act, id) }()
			awaitLocks(t, db, true)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r := <-done; r.code != exitFailed || r.out != "" || !strings.Contains(r.errOut, act+" job "+id+": it is pending") {
				t.Errorf("%s, %s: %+v, want a refusal", name, act, r)
			}
			if acts := rows(t, direct, "audit", "--job", id); len(acts) != 0 {
				t.Errorf("%s, %s: the audit has %v", name, act, acts)
			}
			if out := ok(t, way, "dlq", act, ids[1]); out != ids[1]+"\n" {
				t.Errorf("%s, %s: of a dead letter it says %q", name, act, out)
			}
			late := dead(t, db, kind, 1)[0]
			sqlExec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second' WHERE id = $1`, late)
			if r := posthaste(t, way, "", "dlq", act, late); act == "replay" && (r.code != exitFailed || !strings.Contains(r.errOut, "deadline has passed")) || act == "dismiss" && r.code != exitOK {
				t.Errorf("%s, %s of one past its deadline: %+v", name, act, r)
			}
		}
	}
}
