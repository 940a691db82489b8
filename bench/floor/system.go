package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

// floor uses our schema and our statements without our program.
type floor struct {
	url   string
	pool  *pgxpool.Pool
	alike bool // both connections do the same
}

func (f *floor) Migrate(ctx context.Context) error { return migrate.Up(ctx, f.pool) }

func (f *floor) Open() (table, condition string) {
	return "outbox.jobs", `status IN ('pending', 'running', 'retrying') AND run_at <= now()`
}

func (f *floor) Commit(context.Context, int, func(pgx.Tx) error) error {
	return errors.New("the floor has no single jobs")
}

// EnqueueMany sends the COPY that outbox.EnqueueMany sends: the same columns, encoded here with as little work as
// possible.
func (f *floor) EnqueueMany(ctx context.Context, _, n int) error {
	var stream bytes.Buffer
	stream.WriteString("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	id := outbox.NewID() // the next ones count up from here: ordered by time, like version 7
	payload := []byte(`{"n":12345}`)
	for range n {
		binary.BigEndian.PutUint64(id[8:], binary.BigEndian.Uint64(id[8:])+1)
		stream.Write([]byte{0, 3})
		for _, field := range [][]byte{id[:], []byte("bench.noop"), payload} {
			stream.Write(binary.BigEndian.AppendUint32(nil, uint32(len(field))))
			stream.Write(field)
		}
	}
	stream.Write([]byte{0xff, 0xff})
	return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().CopyFrom(ctx, &stream, `COPY outbox.jobs (id, kind, payload) FROM STDIN BINARY`)
		return err
	})
}

// batch is how many jobs the dispatcher claims, and settles, at once.
const batch = 2000

// claimed holds what settling needs of a claim.
type claimed struct {
	places []pgtype.TID
	ids    []pgtype.UUID
	epochs []int64
	starts []pgtype.Timestamptz
}

// Work uses two connections: one that claims and one that settles, or two that do both in turn. Which way is faster
// depends on the cores.
func (f *floor) Work(ctx context.Context, handle func(context.Context, int)) (func() error, error) {
	stopped := make(chan struct{})
	batches := make(chan claimed, 2)
	group, ctx := errgroup.WithContext(ctx)
	start := func(loop func(*pgx.Conn) error) {
		group.Go(func() error {
			conn, err := pgx.Connect(ctx, f.url)
			if err == nil {
				defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
				err = loop(conn)
			}
			if err != nil && context.Cause(ctx) == nil { // otherwise the caller would wait for the jobs forever
				fmt.Fprintln(os.Stderr, "floor:", err)
				os.Exit(1)
			}
			return err
		})
	}
	if f.alike {
		for range 2 {
			start(func(conn *pgx.Conn) error {
				return claim(ctx, conn, stopped, func(b claimed) error { return settle(ctx, conn, b, handle) })
			})
		}
	} else {
		start(func(conn *pgx.Conn) error {
			defer close(batches)
			return claim(ctx, conn, stopped, func(b claimed) error { return pass(ctx, b, batches) })
		})
		start(func(conn *pgx.Conn) error {
			for b := range batches {
				if err := settle(ctx, conn, b, handle); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return func() error { close(stopped); return group.Wait() }, nil
}

func pass(ctx context.Context, b claimed, to chan<- claimed) error {
	select {
	case to <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// place is where a claim starts: at the last job of the claim before, as in the dispatcher, so that it does not read
// what is done.
type place struct {
	runAt  pgtype.Timestamptz
	id     pgtype.UUID
	micros uint64 // runAt as the server sends it
}

var root = pgtype.UUID{Bytes: outbox.RootTenant, Valid: true}

var front = place{
	runAt: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
	id:    pgtype.UUID{Valid: true},
}

func (p *place) advance(micros uint64, id pgtype.UUID) {
	if micros < p.micros || micros == p.micros && bytes.Compare(id.Bytes[:], p.id.Bytes[:]) <= 0 {
		return
	}
	if micros != p.micros {
		p.micros = micros
		p.runAt = instant(micros)
	}
	p.id = id
}

var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// instant returns a time that the server sends as microseconds since 2000.
func instant(micros uint64) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: epoch2000.Add(time.Duration(micros) * time.Microsecond), Valid: true}
}

// claim claims until it is stopped.
func claim(ctx context.Context, conn *pgx.Conn, stopped <-chan struct{}, then func(claimed) error) error {
	from := front
	for {
		rows, err := conn.Query(ctx, sqlgen.ClaimJobs, "floor", 15*time.Second,
			[]pgtype.UUID{root}, []int32{batch}, []int32{1}, []int32{1}, // all of one tenant, from its one cursor
			[]int16{0}, []pgtype.Timestamptz{from.runAt}, []pgtype.UUID{from.id}, nil, "default",
			[]string{"bench.noop"}, false, batch)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		id, epoch, runAt, at := column(rows, "id"), column(rows, "epoch"), column(rows, "run_at"), column(rows, "place")
		startedAt := column(rows, "started_at")
		b := claimed{
			make([]pgtype.TID, 0, batch), make([]pgtype.UUID, 0, batch), make([]int64, 0, batch),
			make([]pgtype.Timestamptz, 0, batch),
		}
		for rows.Next() {
			row := rows.RawValues()
			job := pgtype.UUID{Bytes: [16]byte(row[id]), Valid: true}
			from.advance(binary.BigEndian.Uint64(row[runAt]), job)
			b.places = append(b.places, pgtype.TID{
				BlockNumber:  binary.BigEndian.Uint32(row[at]),
				OffsetNumber: binary.BigEndian.Uint16(row[at][4:]), Valid: true,
			})
			b.ids = append(b.ids, job)
			b.epochs = append(b.epochs, int64(binary.BigEndian.Uint64(row[epoch])))
			b.starts = append(b.starts, instant(binary.BigEndian.Uint64(row[startedAt])))
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(b.ids) > 0 {
			if err := then(b); err != nil {
				return err
			}
			continue
		}
		from = front // to find jobs that were committed late
		select {
		case <-stopped:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// column returns the index of a column in a statement's result.
func column(rows pgx.Rows, name string) int {
	return slices.IndexFunc(rows.FieldDescriptions(), func(f pgconn.FieldDescription) bool { return f.Name == name })
}

// settle stores a batch as succeeded, and counts it.
func settle(ctx context.Context, conn *pgx.Conn, b claimed, handle func(context.Context, int)) error {
	rows, err := conn.Query(ctx, sqlgen.SettleInPlace, b.places, b.ids, b.epochs, b.starts)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	settled := 0
	for rows.Next() {
		handle(ctx, 0)
		settled++
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if settled != len(b.ids) {
		return fmt.Errorf("settled %d of %d jobs", settled, len(b.ids))
	}
	return nil
}
