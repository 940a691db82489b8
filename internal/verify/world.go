package verify

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/verify/checker"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

// applicationName is the name of the harness's own sessions, which faults that hit all sessions spare.
const applicationName = "verify"

// recording records every change of a job, in the transaction that makes it. The numbers of a job's moves rise in the
// order of its changes, because each change holds the lock of the row. The triggers are statement triggers: row
// triggers would cost more than the work that they record. They force hash joins: the sessions of dispatchers and
// reapers turn them off, and would compare each of thousands of rows with every other.
const recording = `
	CREATE SCHEMA verify;
	CREATE TABLE verify.moves (
		seq bigint GENERATED ALWAYS AS IDENTITY, job uuid NOT NULL, was text, became text NOT NULL, epoch bigint NOT NULL,
		owner text, expires timestamptz, lost_leases integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
	CREATE FUNCTION verify.made() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		INSERT INTO verify.moves (job, became, epoch, owner, expires, lost_leases)
		SELECT id, status, epoch, lease_owner, lease_expires_at, lost_leases FROM made;
		RETURN NULL;
	END $$;
	CREATE FUNCTION verify.changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET enable_nestloop = off SET enable_hashjoin = on AS $$ BEGIN
		INSERT INTO verify.moves (job, was, became, epoch, owner, expires, lost_leases)
		SELECT a.id, b.status, a.status, a.epoch, a.lease_owner, a.lease_expires_at, a.lost_leases
		FROM before AS b JOIN after AS a USING (id)
		WHERE (b.status, b.epoch, b.lease_owner, b.lease_expires_at) IS DISTINCT FROM (a.status, a.epoch, a.lease_owner, a.lease_expires_at);
		RETURN NULL;
	END $$;
	CREATE FUNCTION verify.closed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		INSERT INTO verify.moves (job, was, became, epoch, lost_leases)
		SELECT id, closed_from, status, epoch, lost_leases FROM made;
		RETURN NULL;
	END $$;
	CREATE TRIGGER verify_made AFTER INSERT ON outbox.jobs REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION verify.made();
	CREATE TRIGGER verify_changed AFTER UPDATE ON outbox.jobs REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION verify.changed();
	CREATE TRIGGER verify_closed AFTER INSERT ON outbox.history REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION verify.closed()`

func (r *Run) ledgers() string { return filepath.Join(r.Dir, "ledgers") }

// openDatabase creates the run's database on a server, migrates it, and installs the recording. It notes in the record
// the settings that decide what a crash can lose.
func (r *Run) openDatabase(ctx context.Context, server string) (err error) {
	if r.URL, _, err = pgdev.CreateDatabase(ctx, server, "verify"); err != nil {
		return err
	}
	if r.DB, err = r.connect(ctx); err != nil {
		return err
	}
	s := &r.record.Server
	err = r.DB.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'),
		current_setting('synchronous_commit'), current_setting('full_page_writes')`).
		Scan(&s.Version, &s.Fsync, &s.SynchronousCommit, &s.FullPageWrites)
	if err == nil && r.Previous != "" {
		err = r.posthaste(ctx, r.Previous, "migrate", "up").Run()
	}
	if err == nil {
		err = migrate.Up(ctx, r.DB)
	}
	for _, sql := range []string{probe.Schema, recording} {
		if err == nil {
			_, err = r.DB.Exec(ctx, sql)
		}
	}
	if err == nil && r.clock != "" {
		// The clock may step between the read that decides about a lease and the recording: record the time of that
		// read.
		_, err = r.DB.Exec(ctx, `ALTER TABLE verify.moves ALTER at SET DEFAULT statement_timestamp()`)
	}
	if err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	return nil
}

func (r *Run) connect(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(r.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["application_name"] = applicationName
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	return pgxpool.NewWithConfig(ctx, config)
}

// ask retries question until the server answers.
func (r *Run) ask(ctx context.Context, question func(context.Context) error) error {
	return r.Await(ctx, patience, "an answer of the server", func(ctx context.Context) (bool, error) {
		err := question(ctx)
		return err == nil, err
	})
}

// Number returns the single integer that a query yields.
func (r *Run) Number(ctx context.Context, sql string, args ...any) (n int, err error) {
	err = r.ask(ctx, func(ctx context.Context) error { return r.DB.QueryRow(ctx, sql, args...).Scan(&n) })
	return n, err
}

// Texts returns the single column of a query's rows.
func (r *Run) Texts(ctx context.Context, sql string, args ...any) (column []string, err error) {
	rows, _ := r.DB.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// moves returns the recorded moves, job by job.
func (r *Run) moves(ctx context.Context) iter.Seq2[checker.Move, error] {
	return func(yield func(checker.Move, error) bool) {
		rows, err := r.DB.Query(ctx, `SELECT job::text, coalesce(was, ''), became, epoch, coalesce(owner, ''),
			expires IS NOT NULL, coalesce(expires, at), lost_leases, at
			FROM verify.moves ORDER BY job, seq`)
		if err != nil {
			yield(checker.Move{}, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var m checker.Move
			var was, became string
			var leased bool
			err := rows.Scan(&m.Job, &was, &became, &m.Epoch, &m.Owner, &leased, &m.Expires, &m.LostLeases, &m.At)
			if m.From, m.To = outbox.Status(was), outbox.Status(became); !leased {
				m.Expires = time.Time{}
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(checker.Move{}, err)
		}
	}
}
