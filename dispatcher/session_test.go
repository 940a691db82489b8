package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// prepared returns one of the dispatcher's own sessions.
func prepared(t *testing.T, db *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	pool, err := openControlPool(t.Context(), db, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn.Conn()
}

func setting(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	var value string
	if err := conn.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// The settings of a database or role must not cost durability.
func TestSessionIsDurable(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"off": "on", "local": "local", "remote_apply": "remote_apply"} {
		t.Run(given, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var name string
			if err := db.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s SET synchronous_commit = %s`, name, given)); err != nil {
				t.Fatal(err)
			}
			conn := prepared(t, db)
			if got := setting(t, conn, "synchronous_commit"); got != want {
				t.Errorf("synchronous_commit = %s, want %s", got, want)
			}
		})
	}
}

func TestSessionBoundsEveryStatement(t *testing.T) {
	t.Parallel()
	conn := prepared(t, pgtest.New(t))
	for name, unlimited := range map[string]string{"statement_timeout": "0", "lock_timeout": "0"} {
		if got := setting(t, conn, name); got == unlimited {
			t.Errorf("%s = %s", name, got)
		}
	}
}

// The user's own AfterConnect still runs, and first.
func TestSessionKeepsTheUsersHook(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config()
	var calls atomic.Int64
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		calls.Add(1)
		_, err := conn.Exec(ctx, `SET application_name = 'of the user'`)
		return err
	}
	user, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(user.Close)
	conn := prepared(t, user)
	if calls.Load() != 1 || setting(t, conn, "application_name") != "of the user" {
		t.Errorf("hook called %d times, application_name = %s", calls.Load(), setting(t, conn, "application_name"))
	}
	if setting(t, conn, "lock_timeout") == "0" {
		t.Error("the session was not prepared")
	}
}

func TestSQLState(t *testing.T) {
	err := fmt.Errorf("claim: %w", &pgconn.PgError{Code: pgsession.ReadOnly})
	if got := pgsession.State(err); got != "25006" {
		t.Errorf("sqlstate = %q", got)
	}
	if got := pgsession.State(errors.New("cut")); got != "" {
		t.Errorf("sqlstate of no answer = %q", got)
	}
}

// spy sends statements on and keeps the last one.
type spy struct {
	*pgx.Conn
	sql  string
	args int
}

func (s *spy) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	s.sql, s.args = sql, len(args)
	return s.Conn.Query(ctx, sql, args...)
}

// A server may keep a plan that it made while the table was empty, for as long as the session lives. That plan must be
// right for a full table, too.
func TestPlansMadeOnTheEmptyTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := prepared(t, db)
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	run(`ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`)
	run(`ANALYZE outbox.jobs`)
	run(`SET plan_cache_mode = force_generic_plan`)
	s := &spy{Conn: conn}
	for name, c := range hotStatements(t.Context(), sqlgen.New(s)) {
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		statement := strings.ToLower(name)
		if _, err := conn.Prepare(t.Context(), statement, s.sql); err != nil {
			t.Fatal(err)
		}
		rows, _ := conn.Query(t.Context(), fmt.Sprintf(`EXPLAIN (COSTS OFF) EXECUTE %s (%s)`, statement, strings.TrimSuffix(strings.Repeat("NULL,", s.args), ",")),
			pgx.QueryExecModeSimpleProtocol)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("explain %s: %v", name, err)
		}
		plan := strings.Join(lines, "\n")
		judgePlan(t, name, plan)
		if !strings.Contains(plan, c.index) {
			t.Errorf("the plan of %s does not use %s:\n%s", name, c.index, plan)
		}
	}
}

// judgePlan reports what no plan may do, and what some plans may not do.
func judgePlan(t *testing.T, name, plan string) {
	t.Helper()
	for _, bad := range []string{"Seq Scan on jobs", "Bitmap", "jobs_lease_idx", "jobs_dead_letter_idx"} {
		// Jobs that a new limit finds running are looked up in the index of leases, once.
		if strings.Contains(plan, bad) && (name != "MeasureQueue" || bad != "jobs_lease_idx") {
			t.Errorf("the plan of %s has a %s:\n%s", name, bad, plan)
		}
	}
	// A sub-select in a join may be executed once for each row, and lease its limit each time. A sub-select that
	// depends on nothing outside is executed once.
	list := regexp.MustCompile(`^Update on jobs.*\n +InitPlan .*(?s:.*)\n  ->  Tid Scan on jobs[^\n]*\n +TID Cond: \(ctid = ANY \(`)
	if name == "ClaimJobs" && (!list.MatchString(plan) || strings.Contains(plan, "SubPlan")) {
		t.Errorf("the claim does not choose its jobs once and apart:\n%s", plan)
	}
	// Checked once, before any lookup: an unlimited queue pays for no more.
	if strings.HasPrefix(name, "Claim") && name != "ClaimKeyedJobs" && !strings.Contains(plan, "jobs_pkey") {
		t.Errorf("%s does not look jobs up by their ids:\n%s", name, plan)
	}
	if name == "ClaimJobs" && (strings.Count(plan, "queues_pkey") != 1 || !strings.Contains(plan, "One-Time Filter")) {
		t.Errorf("the claim asks for what an operator has set more than once:\n%s", plan)
	}
	// The list of chosen jobs is made once, and the statement's own conditions are checked once, before the first
	// change.
	if name == "ClaimStreamedJobs" && (strings.Count(plan, "queues_pkey") != 1 || strings.Count(plan, "One-Time Filter") != 3 || !strings.Contains(plan, "CTE Scan on taken") || strings.Contains(plan, "Hash")) {
		t.Errorf("the claim of streamed jobs does not choose them once and apart:\n%s", plan)
	}
	if (name == "SurveyQueue" || name == "ClaimJobs" || name == "ClaimStreamedJobs") && strings.Contains(plan, "Sort Key: jobs") {
		t.Errorf("the index is read to the end of a tenant's jobs:\n%s", plan)
	}
	if name == "SurveyQueue" && strings.Count(plan, "Scan Backward using jobs_") != 10 {
		t.Errorf("gaps are not read from their newest entries:\n%s", plan)
	}
	if name == "SettleInPlace" && strings.Contains(plan, "jobs_pkey") {
		t.Errorf("what is settled in its place is looked up:\n%s", plan)
	}
	if name == "SettleInPlace" && (!strings.Contains(plan, "TID Cond: (ctid = ANY (") || !strings.Contains(plan, "One-Time Filter")) {
		t.Errorf("what is settled in its place is no list, or its patience is asked for each job:\n%s", plan)
	}
	if (name == "SettleInPlace" || name == "SettleSucceededThen") && !strings.Contains(plan, "hashed SubPlan") {
		t.Errorf("each is compared with each:\n%s", plan)
	}
}

// hotStatement is a frequent statement, with the index that it must use, or what it does without one.
type hotStatement struct {
	call  func() error
	index string
}

func hotStatements(ctx context.Context, q *sqlgen.Queries) map[string]hotStatement {
	id, front := pgvalue.UUID(outbox.NewID()), pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	return map[string]hotStatement{
		"ClaimJobs": {func() error {
			_, err := q.ClaimJobs(ctx, sqlgen.ClaimJobsParams{
				Worker: "w", LeaseTtl: pgvalue.Interval(1), Queue: "default", Kinds: []string{"a"}, MaxJobs: 10,
				TenantIds: []pgtype.UUID{id}, Quotas: []int32{1}, Firsts: []int32{1}, Lasts: []int32{1}, Priorities: []int16{0}, FromRunAt: []pgtype.Timestamptz{front}, FromID: []pgtype.UUID{id},
			})
			return err
		}, "jobs_due_idx"},
		"ClaimStreamedJobs": {func() error {
			_, err := q.ClaimStreamedJobs(ctx, sqlgen.ClaimStreamedJobsParams{
				Worker: "w", LeaseTtl: pgvalue.Interval(1), Queue: "default", Kinds: []string{"a"}, MaxJobs: 10,
				TenantIds: []pgtype.UUID{id}, Quotas: []int32{1}, Firsts: []int32{1}, Lasts: []int32{1}, Priorities: []int16{0}, FromRunAt: []pgtype.Timestamptz{front}, FromID: []pgtype.UUID{id},
			})
			return err
		}, "jobs_due_idx"},
		"MeasureQueue": {func() error {
			_, err := q.MeasureQueue(ctx, "default")
			return err
		}, "jobs_pkey"},
		"SurveyQueue": {func() error {
			_, err := q.SurveyQueue(ctx, sqlgen.SurveyQueueParams{Queue: "default", MaxNew: 10})
			return err
		}, "jobs_keyed_due_idx"},
		"FindMovableKeys": {func() error {
			_, err := q.FindMovableKeys(ctx, sqlgen.FindMovableKeysParams{Ats: []int32{0}, TenantIds: []pgtype.UUID{id}, Queues: []string{"q"}, Keys: []string{"k"}})
			return err
		}, "jobs_slot_idx"},
		"SettleSucceeded": {func() error {
			_, err := q.SettleSucceeded(ctx, sqlgen.SettleSucceededParams{
				Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Results: [][]byte{nil},
			})
			return err
		}, "jobs_pkey"},
		"SettleInPlace": {func() error {
			_, err := q.SettleInPlace(ctx, sqlgen.SettleInPlaceParams{
				Places: []pgtype.TID{{Valid: true}}, Ids: []pgtype.UUID{id}, Epochs: []int64{1},
			})
			return err
		}, "Tid Scan on jobs"},
		"SettleStreamed": {func() error {
			_, err := q.SettleStreamed(ctx, sqlgen.SettleStreamedParams{
				Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Results: [][]byte{nil},
			})
			return err
		}, "jobs_pkey"},
		"SettleSucceededThen": {func() error {
			_, err := q.SettleSucceededThen(ctx, sqlgen.SettleSucceededThenParams{
				Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Results: [][]byte{nil},
			})
			return err
		}, "jobs_pkey"},
		"SettleUnfinished": {func() error {
			_, err := q.SettleUnfinished(ctx, sqlgen.SettleUnfinishedParams{
				Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Statuses: []string{"pending"}, Delays: []pgtype.Interval{pgvalue.Interval(1)},
				ErrorCodes: []string{""}, ErrorMessages: []string{""}, Stacks: []string{""},
			})
			return err
		}, "jobs_pkey"},
		"SettleUnavailable": {func() error {
			_, err := q.SettleUnavailable(ctx, sqlgen.SettleUnavailableParams{
				Ids: []pgtype.UUID{id}, Epochs: []int64{1}, OutageLimits: []pgtype.Interval{pgvalue.Interval(1)}, Waits: []pgtype.Interval{pgvalue.Interval(1)},
				Statuses: []string{"retrying"}, Delays: []pgtype.Interval{pgvalue.Interval(1)}, ErrorCodes: []string{"a"}, ErrorMessages: []string{"a"},
				Stacks: []string{""}, Fingerprints: []string{""},
			})
			return err
		}, "jobs_pkey"},
		"ExtendLeases": {func() error {
			_, err := q.ExtendLeases(ctx, sqlgen.ExtendLeasesParams{Ids: []pgtype.UUID{id}, Epochs: []int64{1}, LeaseTtl: pgvalue.Interval(1)})
			return err
		}, "jobs_pkey"},
	}
}
