package examples_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The README's programs do what it says: in a migrated database the worker sends a
// receipt for what the producers store.
func TestReadmeProgramsWork(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	bin := t.TempDir()
	output, err := exec.CommandContext(ctx, "go", "build", "-o", bin+string(filepath.Separator),
		"./producer", "./worker", "./sqlproducer").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	db := pgtest.New(t)
	if _, err := db.Exec(ctx, `CREATE TABLE orders (id bigserial PRIMARY KEY, item text)`); err != nil {
		t.Fatal(err)
	}
	program := func(name string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, name))
		cmd.Env = append(os.Environ(), "DATABASE_URL="+db.Config().ConnString())
		return cmd
	}

	worker := program("worker")
	stderr, err := worker.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for i, name := range []string{"producer", "sqlproducer"} {
		if output, err := program(name).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, output)
		}
		await(t, lines, []string{"receipt for order 1", "receipt for order 2"}[i])
	}
	if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // Wait closes the pipe
	}
	if err := worker.Wait(); err != nil {
		t.Errorf("the worker did not stop in good order: %v", err)
	}
	var closed int
	err = db.QueryRow(ctx, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded'`).Scan(&closed)
	if err != nil || closed != 2 {
		t.Errorf("jobs that succeeded = %d, %v, want 2", closed, err)
	}
}

// The TestMain that docs/guides/testing.md shows runs the tests of the guide on the database of TEST_DATABASE_URL, and
// none without it.
func TestGuidesTestMainWorks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tests := filepath.Join(t.TempDir(), "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-w", "-tags", "reader", "-o", tests, "./testing")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, output)
	}
	for url, want := range map[string]string{pgtest.URL(t): "PASS", "": "TEST_DATABASE_URL is not set"} {
		cmd := exec.CommandContext(ctx, tests)
		cmd.Dir = "testing"
		cmd.Env = append(os.Environ(), "TEST_DATABASE_URL="+url)
		if output, err := cmd.CombinedOutput(); !strings.Contains(string(output), want) || (err == nil) != (url != "") {
			t.Errorf("with the URL %q: %v, want %q:\n%s", url, err, want, output)
		}
	}
}

// await reads until a line contains the text.
func await(t *testing.T, lines *bufio.Scanner, text string) {
	t.Helper()
	var before []string
	for lines.Scan() {
		before = append(before, lines.Text())
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the worker never said %q, but:\n%s", text, strings.Join(before, "\n"))
}
