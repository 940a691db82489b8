package pgtest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// rulebreakers are tests that break a rule of this package on purpose. They run in a child process, whose output is
// compared with want.
var rulebreakers = map[string]struct {
	test func(*testing.T)
	want string
}{
	"connection": {leakConnection, `(?s)the test leaked connections:.*forgotten`},
	"pool":       {leakTransaction, `the test kept 1 connections of its pool`},
	"lease":      {breakLease, `invariant broken: a job is running exactly while it has a lease: 1, 2\n`},
	"history":    {breakHistory, `invariant broken: a job is open or in the history, not both: 4\n`},
	"kept":       {func(t *testing.T) { URL(t); t.Fail() }, `kept for you: psql 'postgres`},
}

// forgotten keeps the garbage collector from closing the leaked connection.
var forgotten *pgx.Conn

func leakConnection(t *testing.T) {
	var err error
	if forgotten, err = pgx.Connect(t.Context(), URL(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := forgotten.Exec(t.Context(), "SELECT 'forgotten'"); err != nil {
		t.Fatal(err)
	}
}

func leakTransaction(t *testing.T) {
	if _, err := New(t).Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func breakLease(t *testing.T) {
	if _, err := NewEmpty(t).Exec(t.Context(), `
		CREATE SCHEMA outbox;
		CREATE TABLE outbox.jobs (id int, status text, lease_expires_at timestamptz);
		INSERT INTO outbox.jobs VALUES (1, 'running', NULL), (2, 'pending', now()), (3, 'running', now()), (4, 'pending', NULL)`); err != nil {
		t.Fatal(err)
	}
}

func breakHistory(t *testing.T) {
	if _, err := NewEmpty(t).Exec(t.Context(), `
		CREATE SCHEMA outbox;
		CREATE TABLE outbox.jobs (id int, status text, lease_expires_at timestamptz);
		CREATE TABLE outbox.history (id int);
		INSERT INTO outbox.jobs VALUES (3, 'pending', NULL), (4, 'pending', NULL);
		INSERT INTO outbox.history VALUES (4), (5)`); err != nil {
		t.Fatal(err)
	}
}

func TestBrokenRulesAreReported(t *testing.T) {
	t.Parallel()
	if os.Getenv("PGTEST_TEST_LEAKY") != "" {
		for name, r := range rulebreakers {
			t.Run(name, func(t *testing.T) { t.Parallel(); r.test(t) })
		}
		return
	}
	for name, r := range rulebreakers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenRulesAreReported$/^"+name+"$")
			child.Env = append(os.Environ(), "PGTEST_TEST_LEAKY=1", serverVariable+"="+serverURL(t))
			if name == "kept" {
				child.Env = append(child.Env, "PGTEST_KEEP=1")
			}
			out, err := child.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestBrokenRulesAreReported/"+name) {
				t.Errorf("the child: %v, want that its test fails", err)
			}
			if !regexp.MustCompile(r.want).Match(out) {
				t.Errorf("the child says %s\nwant something like %q", out, r.want)
			}
			for _, url := range regexp.MustCompile(`postgres://\S*/t_[^\s']*`).FindAllString(string(out), -1) {
				conn, err := pgx.Connect(t.Context(), url)
				if err != nil {
					t.Errorf("connect to the database that was kept: %v", err)
					continue
				}
				conn.Close(t.Context())
			}
		})
	}
}
