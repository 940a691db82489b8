package pgdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

const standbyTimeout = time.Minute

// Standby starts a copy of an owned server that streams from it and answers queries, at the given port (0: a free one).
// When it returns, the commits of s wait until the standby has stored them. The standby is a Server of its own, which
// the caller stops; Promote makes it writable.
func (s *Server) Standby(ctx context.Context, port int) (standby *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	f, err := openFolder(Options{})
	if err != nil {
		return nil, err
	}
	err = s.owned(func(c *cluster) error {
		if err := c.backup(ctx, f); err != nil {
			return fmt.Errorf("copy the server: %w", err)
		}
		o := Options{
			Port: port, Env: c.env,
			Settings: map[string]string{"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres",
				c.port)},
		}
		standby, err = startOwned(ctx, o, f, c.bin, "a standby")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	if err := s.waitForStandby(ctx); err != nil {
		return nil, errors.Join(err, standby.Stop())
	}
	return standby, nil
}

// backup copies the running server's files as the manual describes in "Making a Base Backup Using the Low Level API".
// What the server writes meanwhile is in the WAL, which the copy replays from the label's position.
func (c *cluster) backup(ctx context.Context, to *folder) error {
	conn, err := pgx.Connect(ctx, localURL(c.port))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SELECT pg_backup_start('standby', true)`); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "cp", "-R", "-p", c.data(), to.data())
	cmd.Dir, cmd.SysProcAttr = to.path, to.account.attributes()
	out, err := cmd.CombinedOutput()
	// Exit code 1 means that a temporary file went away meanwhile.
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !(ok && exit.ExitCode() == 1) {
		return fmt.Errorf("cp: %w%s", err, indent(out))
	}
	var label string
	if err := conn.QueryRow(ctx, `SELECT labelfile FROM pg_backup_stop(false)`).Scan(&label); err != nil {
		return err
	}
	for name, content := range map[string]string{"backup_label": label, "standby.signal": ""} {
		path := filepath.Join(to.data(), name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), to.account.own(path)); err != nil {
			return err
		}
	}
	return os.Remove(filepath.Join(to.data(), "postmaster.pid"))
}

// waitForStandby makes every commit wait for the standby, once the standby streams.
func (s *Server) waitForStandby(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := until(ctx, func() (follows bool, err error) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`).Scan(
			&follows)
		return follows, err
	}); err != nil {
		return fmt.Errorf("the standby does not follow: %w", err)
	}
	return s.seeACommitWait(ctx, conn)
}

// seeACommitWait returns when it has seen a commit wait for the standby. pg_stat_replication shows what the standby's
// WAL sender has read of the settings, but commits wait only once the checkpointer has read them, too, which takes
// longer if it is busy.
func (s *Server) seeACommitWait(ctx context.Context, conn *pgx.Conn) error {
	ctx, stop := context.WithCancel(ctx)
	writer, err := pgx.Connect(ctx, s.url)
	if err != nil {
		stop()
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for err := error(nil); err == nil; {
			_, err = writer.Exec(ctx, `SELECT pg_logical_emit_message(true, 'standby', '')`)
		}
	}()
	defer func() {
		stop()
		<-stopped
		_ = writer.Close(context.WithoutCancel(ctx))
	}()
	if err := until(ctx, func() (waits bool, err error) {
		err = conn.QueryRow(ctx,
			`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')`,
			writer.PgConn().PID()).Scan(&waits)
		return waits, err
	}); err != nil {
		return fmt.Errorf("no commit waits for the standby: %w", err)
	}
	return nil
}

// until calls ask every few milliseconds, until it reports true or returns an error.
func until(ctx context.Context, ask func() (bool, error)) error {
	for {
		if is, err := ask(); err != nil || is {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Promote makes a standby the server that takes writes, and returns when it does.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var promoted bool
	if err := conn.QueryRow(ctx, `SELECT pg_promote(true, 30)`).Scan(&promoted); err != nil {
		return err
	}
	if !promoted {
		return errors.New("the standby was not promoted within 30 s")
	}
	return nil
}
