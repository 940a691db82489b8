//go:build unix

package changefeed_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// A row keeps the id of its transaction when it is frozen, and ids come round again: after half of the 32-bit ids the
// row seems to be of the future.
func TestAJobOfTwoBillionTransactionsAgoHasNotChanged(t *testing.T) {
	t.Parallel()
	base, err := os.MkdirTemp("/tmp", "posthaste-old-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil { // the server's account must reach the folder in it
		t.Fatal(err)
	}
	dir := filepath.Join(base, "server")
	start := func() (*pgdev.Server, *pgxpool.Pool) {
		server, err := pgtest.StartServer(t.Context(), func(o *pgdev.Options) { o.Dir, o.DatabaseURL = dir, "" })
		if err != nil {
			t.Fatal(err)
		}
		db, err := pgxpool.New(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		return server, db
	}
	stop := func(server *pgdev.Server, db *pgxpool.Pool) {
		db.Close()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}

	server, db := start()
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	old := storeMail(t, db)
	for _, statement := range []string{`VACUUM (FREEZE)`, `CHECKPOINT`} {
		if _, err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	stop(server, db)
	passTransactions(t, server.Programs(), filepath.Join(dir, "data"), 2_600_000_000)

	server, db = start()
	defer stop(server, db)
	since := begin(t, db)
	fresh := storeMail(t, db)
	inTx(t, db, func(tx pgx.Tx) error {
		var age int
		if err := tx.QueryRow(t.Context(), `SELECT age(xmin) FROM outbox.jobs WHERE id = $1`, old).Scan(&age); err != nil {
			return err
		}
		if age >= 0 {
			t.Fatalf("the old row's age is %d, want one of the future: the test tests nothing", age)
		}
		changes, _, more, err := changefeed.List(t.Context(), tx, [16]byte{}, since, 1)
		if err != nil {
			return err
		}
		if len(changes) != 1 || changes[0].ID != fresh || more {
			t.Errorf("changed %+v, more %t; want %s alone", changes, more, fresh)
		}
		return nil
	})
}

// passTransactions sets the next transaction's id of a server that is shut down.
func passTransactions(t *testing.T, programs, data string, next uint32) {
	t.Helper()
	about, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := about.Sys().(*syscall.Stat_t)
	const perFile = 1 << 20 // transactions in a segment of pg_xact
	segment := filepath.Join(data, "pg_xact", fmt.Sprintf("%04X", next/perFile))
	if err := os.WriteFile(segment, make([]byte, 256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(segment, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	reset := exec.CommandContext(t.Context(), filepath.Join(programs, "pg_resetwal"), "-x", fmt.Sprint(next), "-D", data)
	if os.Geteuid() == 0 {
		reset.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	reset.Dir = "/"
	if out, err := reset.CombinedOutput(); err != nil {
		t.Fatalf("pg_resetwal: %v: %s", err, out)
	}
}
