package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// asShop makes this test binary the program, for demonstrations and their workers.
const asShop = "SHOP_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asShop) != "" {
		os.Exit(run(os.Args[1:]))
	}
	pgtest.Main(m)
}

// show is a small demonstration in a process of its own.
type show struct {
	cmd      *exec.Cmd
	server   string // its Postgres
	database string // the shop's
	lines    *bufio.Scanner
	output   strings.Builder
}

// startShow starts a demonstration and returns once its database is prepared.
func startShow(t *testing.T, args ...string) *show {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &show{server: pgtest.URL(t)}
	s.cmd = exec.CommandContext(ctx, program, append([]string{"demo", "--orders", "200", "--for", "3s", "--lease-ttl", "2s"}, args...)...)
	s.cmd.Env = append(os.Environ(), asShop+"=1", "DATABASE_URL="+s.server)
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	s.lines = bufio.NewScanner(stdout)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := s.await(t, "database posthaste_shop_")
	s.database, _, _ = strings.Cut(strings.TrimPrefix(line, "database "), ":")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the demonstration printed:\n" + s.output.String())
		}
	})
	return s
}

// await reads until a line contains the text.
func (s *show) await(t *testing.T, text string) string {
	t.Helper()
	for s.lines.Scan() {
		s.output.WriteString(s.lines.Text() + "\n")
		if strings.Contains(s.lines.Text(), text) {
			return s.lines.Text()
		}
	}
	t.Fatalf("the demonstration never said %q, but:\n%s", text, s.output.String())
	return ""
}

// end reads the rest and returns the exit status.
func (s *show) end(t *testing.T) int {
	t.Helper()
	for s.lines.Scan() {
		s.output.WriteString(s.lines.Text() + "\n")
	}
	_ = s.cmd.Wait() // the status tells
	return s.cmd.ProcessState.ExitCode()
}

// connect connects to the shop's database, or to the server's if it is named so.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (s *show) url(t *testing.T) string {
	t.Helper()
	url, err := pgdev.WithDatabase(s.server, s.database)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// count returns the one number that a query returns.
func count(t *testing.T, conn *pgx.Conn, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// wantGone fails the test if the demonstration left its database behind.
func (s *show) wantGone(t *testing.T) {
	t.Helper()
	conn := connect(t, s.server)
	if n := count(t, conn, `SELECT count(*) FROM pg_database WHERE datname = $1`, s.database); n != 0 {
		t.Errorf("the demonstration left its database %s behind", s.database)
	}
}
