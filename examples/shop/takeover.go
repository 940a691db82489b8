package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// takeover is what becomes of the jobs that a killed worker held.
type takeover struct {
	worker string
	killed time.Time // by the database's clock, like everything here
	ids    []outbox.ID
	epochs []int64 // of the dead worker's leases

	again       int           // how many have been claimed by another worker since
	first, last time.Duration // after the kill
}

// minHeld is how many jobs the worker shall hold when it is killed.
const minHeld = 3

// awaitBusy returns the name of a worker that has its hands full, with a slow job
// among them that will last for some moments. The holder of a lease is the
// worker's name with a random suffix, so that no two processes share it.
func awaitBusy(ctx context.Context, db *pgxpool.Pool) (name string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 15*time.Second, fmt.Errorf("no worker ever had %d jobs in hand",
		minHeld))
	defer cancel()
	err = poll(ctx, 10*time.Millisecond, func() (bool, error) {
		err := db.QueryRow(ctx, `
			SELECT split_part(lease_owner, '-', 1)
			FROM outbox.jobs
			WHERE status = 'running'
			GROUP BY 1
			HAVING count(*) >= $1
			   AND bool_or(now() - started_at BETWEEN interval '0.1 s' AND interval '0.5 s')
			ORDER BY count(*) DESC
			LIMIT 1`, minHeld).Scan(&name)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
	return name, err
}

// watchTakeover notes what the killed worker held. Its sessions are waited for,
// because the server may still have been busy with its last commit.
func watchTakeover(ctx context.Context, db *pgxpool.Pool, w *worker) (*takeover, error) {
	t := &takeover{worker: w.name}
	if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&t.killed); err != nil {
		return nil, err
	}
	err := poll(ctx, 5*time.Millisecond, func() (gone bool, err error) {
		err = db.QueryRow(ctx, `
			SELECT count(*) = 0
			FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1`, w.appName()).Scan(&gone)
		return gone, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the end of the dead worker's sessions: %w", err)
	}
	rows, err := db.Query(ctx, `SELECT id, epoch FROM outbox.jobs WHERE split_part(lease_owner, '-', 1) = $1`, w.name)
	if err != nil {
		return nil, err
	}
	var id outbox.ID
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&id, &epoch}, func() error {
		t.ids, t.epochs = append(t.ids, id), append(t.epochs, epoch)
		return nil
	})
	return t, err
}

// look finds out how many of the jobs have started again: under a later lease.
func (t *takeover) look(ctx context.Context, db *pgxpool.Pool) error {
	var first, last *time.Time
	err := db.QueryRow(ctx, `
		SELECT count(*), min(started_at), max(started_at)
		FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS epoch) AS held
		CROSS JOIN LATERAL (
			SELECT started_at FROM outbox.jobs WHERE jobs.id = held.id AND jobs.epoch > held.epoch AND jobs.status = 'running'
			UNION ALL
			SELECT started_at FROM outbox.history WHERE history.id = held.id AND history.epoch > held.epoch
		) AS later`, t.ids, t.epochs).Scan(&t.again, &first, &last)
	if err != nil {
		return fmt.Errorf("look for the dead worker's jobs: %w", err)
	}
	if first != nil && last != nil {
		t.first, t.last = first.Sub(t.killed), last.Sub(t.killed)
	}
	return nil
}

// complete reports whether every job has started again.
func (t *takeover) complete() bool { return t.again == len(t.ids) }

// poll calls look every so often until it is content.
func poll(ctx context.Context, every time.Duration, look func() (bool, error)) error {
	for {
		content, err := look()
		if content || err != nil {
			return endedBy(ctx, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}
