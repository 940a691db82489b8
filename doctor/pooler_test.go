package doctor

import (
	"fmt"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/programtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// A pooler is named by what it does with sessions, because what works through it depends on that.
func TestAPoolerIsNamedByItsMode(t *testing.T) {
	t.Parallel()
	program := pgbouncer(t)
	db := pgtest.New(t)
	for mode, want := range map[string]string{"transaction": "in transaction mode", "session": "in session mode"} {
		pool := pooled(t, program, mode, db.Config().ConnString())
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e := &examination{target: Target{Pool: pool}, conn: conn.Conn()}
		err = e.server(t.Context()) // alone: the others take longer, and ask about other things
		conn.Release()
		if err != nil {
			t.Fatal(err)
		}
		found := ""
		for _, f := range e.findings {
			if f.Severity == Warning && f.Do != "" {
				found += f.What + "\n"
			}
		}
		if !strings.Contains(found, want) {
			t.Errorf("of a pooler in %s mode the doctor says %q", mode, found)
		}
	}
}

// The lock and the settings of a migration would stay on sessions that a pooler in transaction mode gives to others.
func TestAMigrationThroughAPoolerIsRefusedByItsMode(t *testing.T) {
	t.Parallel()
	program := pgbouncer(t)
	for mode, refused := range map[string]bool{"transaction": true, "session": false} {
		db := pgtest.NewEmpty(t)
		err := migrate.Up(t.Context(), pooled(t, program, mode, db.Config().ConnString()))
		if refused && (err == nil || !strings.Contains(err.Error(), "a connection pooler in transaction mode is in between")) || !refused && err != nil {
			t.Errorf("through a pooler in %s mode: %v, want an error: %t", mode, err, refused)
		}
	}
}

func pgbouncer(t *testing.T) (program string) {
	t.Helper()
	return programtest.Find(t, "pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
}

// What an examination sets would be set for the next client of the session.
func TestAnExaminationLeavesNothingOnSessions(t *testing.T) {
	t.Parallel()
	program := pgbouncer(t)
	db := pgtest.New(t)
	pool := pooled(t, program, "transaction", db.Config().ConnString())
	ended := make(chan error, 1)
	go func() {
		_, err := Examine(t.Context(), Target{Pool: pool, Listen: db.Config().ConnConfig})
		ended <- err
	}()
	for {
		var left string
		err := pool.QueryRow(t.Context(), `SELECT coalesce(current_setting('app.tenant_id', true), '')`).Scan(&left)
		if err != nil || left != "" {
			t.Errorf("another client is of tenant %q, %v; want none", left, err)
			<-ended
			return
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// pooled leads through a PgBouncer of its own.
func pooled(t *testing.T, program, mode, database string) *pgxpool.Pool {
	t.Helper()
	to, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(at)
	config := filepath.Join(t.TempDir(), "pgbouncer.ini")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[databases]\nd = host=%s port=%s dbname=%s user=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"+
		"listen_port = %s\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n", to.Hostname(), to.Port(), strings.TrimPrefix(to.Path, "/"), to.User.Username(), port, mode), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{config}
	if os.Geteuid() == 0 { // it refuses to run as root
		args = []string{"-u", "nobody", config}
	}
	cmd := osexec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pool, err := pgxpool.New(t.Context(), "postgres://postgres@"+at+"/d?sslmode=disable&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for deadline := time.Now().Add(30 * time.Second); pool.Ping(t.Context()) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the pooler does not answer")
		}
	}
	return pool
}
