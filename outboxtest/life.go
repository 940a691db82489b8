package outboxtest

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// life counts the boundaries of a process that is to be killed at one of them. A nil life is never killed.
type life struct {
	killAt   int // the boundary, from 1
	killed   chan struct{}
	released chan struct{} // closed when the test is over: stopped goroutines may end

	mu     sync.Mutex
	passed int
	where  string // the boundary at which it was killed
}

func newLife(killAt int) *life {
	return &life{killAt: killAt, killed: make(chan struct{}), released: make(chan struct{})}
}

// at marks a boundary. A goroutine that reaches it when the process is dead, or dies there, stops for the rest of the
// test and then ends, so that nothing after it happens, not even deferred functions.
func (l *life) at(when, sql string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if l.where == "" {
		if l.passed++; l.passed == l.killAt {
			l.where = when + " " + shortened(sql)
			close(l.killed)
		}
	}
	l.mu.Unlock()
	l.alive()
}

// alive marks a place where a dead process stops and a live one is not killed.
func (l *life) alive() {
	if l.isOver() {
		l.stop()
	}
}

func (l *life) isOver() bool {
	if l == nil {
		return false
	}
	select {
	case <-l.killed:
		return true
	default:
		return false
	}
}

// stop stops a goroutine of a dead process.
func (l *life) stop() {
	<-l.released
	runtime.Goexit()
}

type lifeKey struct{}

// in returns the context of a process, from which those of its handlers derive.
func (l *life) in(ctx context.Context) context.Context { return context.WithValue(ctx, lifeKey{}, l) }

// lifeOf returns the life of the process that uses ctx. A goroutine that a killed handler has started keeps its
// context, and so its life, when the next process runs.
func (d *DB) lifeOf(ctx context.Context) *life {
	if l, ok := ctx.Value(lifeKey{}).(*life); ok {
		return l
	}
	return d.life.Load()
}

var (
	queryName = regexp.MustCompile(`^-- name: (\w+)`)
	blanks    = regexp.MustCompile(`\s+`)
)

// shortened names a statement: ours by its effect, others by their beginning.
func shortened(sql string) string {
	sql = strings.TrimSpace(sql)
	if name := queryName.FindStringSubmatch(sql); name != nil {
		if means, ok := meanings[name[1]]; ok {
			return means
		}
		return "the engine's " + name[1]
	}
	sql = blanks.ReplaceAllString(sql, " ")
	if len(sql) > 100 {
		sql = strings.ToValidUTF8(sql[:97], "") + "…"
	}
	return sql
}

// meanings describe what the engine's statements do for a handler.
var meanings = map[string]string{
	"RecordReports":       "what was reported (a step's result, a checkpoint, progress) is stored",
	"RecordStep":          "the result of a step is stored in its transaction",
	"FindStep":            "the result of a step is looked for",
	"FindCheckpoint":      "the checkpoint is looked for",
	"FindFailedSpans":     "the spans of earlier attempts are looked for",
	"GuardLease":          "Guard",
	"ReceiveMessage":      "inbox.Once",
	"SettleSucceeded":     "the success is stored",
	"SettleInPlace":       "the handler's success is stored",
	"SettleSucceededThen": "the handler's success is stored with what follows",
	"SettleStreamed":      "the handler's success is stored with its event",
	"SettleUnfinished":    "the handler's failure is stored",
	"EnqueueJob":          "Enqueue",
	"EnqueueJobOnce":      "Enqueue with an idempotency key",
	"PublishEvent":        "Publish",
}

// uneventful lists statements of the engine at which a crash makes no difference.
var uneventful = map[string]bool{
	"ClaimJobs": true, "ClaimKeyedJobs": true, "FindMovableKeys": true, "PromoteKeys": true, "RegisterDeathHooks": true,
	"FindEnds": true,
}

// engineDB is the engine's connection. In production the engine has connections of its own: what it stores while a
// handler has a transaction open survives that transaction's rollback, and it acts for all tenants.
type engineDB struct {
	db   *DB
	life *life
}

func (e engineDB) do(ctx context.Context, sql string, args []any, do func(context.Context) error) error {
	name := queryName.FindStringSubmatch(sql)
	if name == nil || !uneventful[name[1]] {
		e.life.at("before", sql)
		defer e.life.at("after", sql)
	}
	return e.db.conn.one(ctx, func(ctx context.Context) error {
		restore, err := e.db.conn.forEngine(ctx)
		if err != nil {
			return err
		}
		if err := do(ctx); err != nil { // the rollback restores the settings
			return errors.Join(err,
				e.db.conn.control(ctx, `ROLLBACK TO SAVEPOINT outboxtest; RELEASE SAVEPOINT outboxtest`))
		}
		if len(e.db.open) > 0 {
			e.db.beside = append(e.db.beside, statement{sql, args})
		}
		return e.db.conn.control(ctx, restore+`; RELEASE SAVEPOINT outboxtest`)
	})
}

func (e engineDB) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = e.do(ctx, sql, args, func(ctx context.Context) error {
		tag, err = e.db.conn.root.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (e engineDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows := &rows{}
	rows.err = e.do(ctx, sql, args, func(ctx context.Context) error {
		return rows.read(e.db.conn.root.Query(ctx, sql, args...))
	})
	return rows, rows.err
}

func (e engineDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	found, _ := e.Query(ctx, sql, args...)
	return row{found}
}
