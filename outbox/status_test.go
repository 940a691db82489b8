package outbox

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

type move struct{ From, To Status }

func (m move) String() string { return fmt.Sprintf("%s → %s", m.From, m.To) }

// pairs returns every ordered pair of statuses, a status with itself included.
func pairs() (all []move) {
	for _, from := range statuses {
		for _, to := range statuses {
			all = append(all, move{from, to})
		}
	}
	return all
}

func legal() (moves []move) {
	for _, m := range pairs() {
		if engine.CanBecome(m.From, m.To) {
			moves = append(moves, m)
		}
	}
	return moves
}

func statesPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/reference/states.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestTheMovesAreTheLegalMoves(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(statesPage(t), "| from | becomes | when |\n| --- | --- | --- |\n")
	if !found {
		t.Fatal("docs/reference/states.md has no table of moves")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []move
	var starts []Status
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 3 {
			t.Fatalf("%q is no move", line)
		}
		if cells[0] == "(new)" {
			starts = append(starts, Status(cells[1]))
			continue
		}
		listed = append(listed, move{Status(cells[0]), Status(cells[1])})
	}

	byStatus := func(a, b move) int {
		return cmp.Or(slices.Index(statuses, a.From)-slices.Index(statuses, b.From), slices.Index(statuses, a.To)-slices.Index(statuses, b.To))
	}
	slices.SortFunc(listed, byStatus)
	if diff := gocmp.Diff(legal(), listed); diff != "" {
		t.Errorf("moves (-status.go +docs/reference/states.md):\n%s", diff)
	}
	if diff := gocmp.Diff([]Status{Pending, Created, Running}, starts); diff != "" {
		t.Errorf("where jobs start (-want +docs/reference/states.md):\n%s", diff)
	}
}

func TestTheTableListsEveryStatusAndItsPlace(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(statesPage(t), "| status | meaning | where |\n| --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var listed []Status
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		status := Status(strings.TrimPrefix(cells[0], "| "))
		listed = append(listed, status)
		where, _, _ := strings.Cut(cells[len(cells)-1], " ")
		if want := map[bool]string{true: "history", false: "jobs"}[status.Closed()]; where != want {
			t.Errorf("docs/reference/states.md has %s in %s, want %s", status, where, want)
		}
	}
	if diff := gocmp.Diff(statuses, listed); diff != "" {
		t.Errorf("statuses (-status.go +docs/reference/states.md):\n%s", diff)
	}
}

func TestWordsOfOtherSystemsAreMappedToStatuses(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(statesPage(t), "| elsewhere | here |\n| --- | --- |\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		theirs, ours := strings.Split(cells[0], ", "), strings.Split(cells[1], ", ")
		if len(theirs) != len(ours) {
			t.Errorf("%d words are mapped to %d: %s", len(theirs), len(ours), line)
		}
		for _, word := range ours {
			if !slices.Contains(statuses, Status(word)) {
				t.Errorf("%s: %q is no status", line, word)
			}
		}
	}
}

func TestTheDatabaseKnowsTheSameStatuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	got := ask[[]Status](t, db, `SELECT enum_range(NULL::outbox.job_status)::text[]`)
	if diff := gocmp.Diff(statuses, got); diff != "" {
		t.Errorf("statuses (-status.go +database):\n%s", diff)
	}
}

// For each ordered pair the move is tried on a real row: it goes through exactly
// if it is legal.
func TestTheDatabaseRefusesEveryIllegalMove(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, m := range pairs() {
		if m.From == m.To {
			continue // no move: see TestAStatusMayBeWrittenAgain
		}
		t.Run(m.String(), func(t *testing.T) {
			tx := begin(t, db, pgx.ReadCommitted)
			id := rowIn(t, tx, m.From)
			err := tryMove(m)(t.Context(), tx, id)
			switch {
			case engine.CanBecome(m.From, m.To) && err != nil:
				t.Errorf("a legal move is refused: %v", err)
			case !engine.CanBecome(m.From, m.To) && sqlState(err) != "23514":
				t.Errorf("an illegal move: %v, want a check violation", err)
			case err == nil && statusOf(t, tx, id) != m.To:
				t.Errorf("status = %s, want %s", statusOf(t, tx, id), m.To)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

type attemptToMove func(context.Context, DB, ID) error

// tryMove returns the statement that would make the move: between open statuses an UPDATE; to a closed one the row goes
// to the history; there it would be changed in place.
func tryMove(m move) attemptToMove {
	switch {
	case m.From.Closed():
		return func(ctx context.Context, db DB, id ID) error {
			return one(db.Exec(ctx, `UPDATE outbox.history SET status = $2::text::outbox.job_status, epoch = epoch + 1 WHERE id = $1`, id, m.To))
		}
	case m.To.Closed():
		return closeJob(m.To)
	default:
		return updateJob(m.To, 1)
	}
}

// updateJob sets the status, raises the epoch and sets or clears the lease as the
// new status demands, so that only the move itself can be what is refused.
func updateJob(to Status, raise int) attemptToMove {
	return func(ctx context.Context, db DB, id ID) error {
		return one(db.Exec(ctx, `
			UPDATE outbox.jobs
			SET status = $2::text::outbox.job_status,
			    epoch = epoch + $3,
			    attempt = greatest(attempt, 1),
			    lease_owner = CASE WHEN $2 = 'running' THEN 'w' END,
			    lease_expires_at = CASE WHEN $2 = 'running' THEN now() END,
			    started_at = now()
			WHERE id = $1`, id, to, raise))
	}
}

func closeJob(to Status) attemptToMove {
	return func(ctx context.Context, db DB, id ID) error {
		return one(db.Exec(ctx, `
			WITH done AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
			INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt,
			    max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			SELECT id, tenant_id, run_at, created_at, epoch, $2::text::outbox.job_status, status, attempt,
			    max_attempts, lost_leases, priority, queue, kind, payload, content_type
			FROM done`, id, to))
	}
}

// one returns an error unless one row was written.
func one(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.RowsAffected() != 1 {
		return fmt.Errorf("%d rows were written, want 1", tag.RowsAffected())
	}
	return err
}

// rowIn stores a job that is in the status, as if it had come there: it has been
// claimed five times.
func rowIn(t *testing.T, db DB, status Status) ID {
	t.Helper()
	id := NewID()
	if status.Closed() {
		from := slices.IndexFunc(statuses, func(s Status) bool { return engine.CanBecome(s, status) })
		exec(t, db, `
			INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt,
			    max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			VALUES ($1, $2, now(), now(), 5, $3::text::outbox.job_status, $4::text::outbox.job_status, 5, 25, 0, 0, 'default', 'greet', '1', 'application/json')`,
			id, RootTenant, status, statuses[from])
		return id
	}
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, lease_owner, lease_expires_at, started_at)
		VALUES ($1, 'greet', '1', $2::text::outbox.job_status, 5, 5, CASE WHEN $2 = 'running' THEN 'w' END, CASE WHEN $2 = 'running' THEN now() END, now())`,
		id, status)
	return id
}

func statusOf(t *testing.T, db DB, id ID) Status {
	t.Helper()
	return ask[Status](t, db, `SELECT status::text FROM outbox.jobs WHERE id = $1 UNION ALL SELECT status::text FROM outbox.history WHERE id = $1`, id)
}

func TestAStatusMayBeWrittenAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, s := range statuses {
		table := map[bool]string{true: "outbox.history", false: "outbox.jobs"}[s.Closed()]
		for _, raise := range []int{0, 1} {
			id := rowIn(t, db, s)
			if err := one(db.Exec(t.Context(), `UPDATE `+table+` SET status = status, epoch = epoch + $2 WHERE id = $1`, id, raise)); err != nil {
				t.Errorf("%s, epoch raised by %d: %v", s, raise, err)
			}
		}
	}
}

// What must be refused although each status, taken alone, would be all right.
func TestTheDatabaseRefusesNonsense(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	refused := map[string]struct {
		from Status
		try  attemptToMove
	}{}
	add := func(name string, from Status, try attemptToMove) {
		refused[name] = struct {
			from Status
			try  attemptToMove
		}{from, try}
	}
	update := func(set string) attemptToMove {
		return func(ctx context.Context, db DB, id ID) error {
			return one(db.Exec(ctx, `UPDATE outbox.jobs SET `+set+` WHERE id = $1`, id))
		}
	}
	for _, m := range legal() {
		if !m.To.Closed() {
			add(m.String()+" with a lower epoch", m.From, updateJob(m.To, -1))
			if m.From == Running || m.To == Running {
				add(m.String()+" with the same epoch", m.From, updateJob(m.To, 0))
			}
		}
	}
	for _, m := range pairs() {
		if !m.From.Closed() && m.To.Closed() {
			add(m.String()+" without leaving jobs", m.From, updateJob(m.To, 1))
		}
	}
	for _, status := range statuses {
		s := string(status)
		if status.Closed() {
			add(s+" with a lower epoch", status, func(ctx context.Context, db DB, id ID) error {
				return one(db.Exec(ctx, `UPDATE outbox.history SET epoch = epoch - 1 WHERE id = $1`, id))
			})
			add(s+" stored in jobs", Pending, insertJob(status, ""))
			continue
		}
		add(s+" with a lower epoch", status, update(`epoch = epoch - 1`))
		add(s+" with a negative epoch", status, update(`epoch = -1`))
		add(s+" with an epoch that would overflow", status, update(`epoch = 9223372036854775807`))
		add(s+" with an attempt that would overflow", status, update(`attempt = 2147483647`))
		add(s+" with attempts that would overflow", status, update(`max_attempts = 2147483647`))
		add(s+" with lost leases that would overflow", status, update(`lost_leases = 2147483647`))
		add(s+" stored in history", Running, closeJob(status))
		if status == Running {
			add("running without an owner", status, update(`lease_owner = NULL`))
			add("running without an end of its lease", status, update(`lease_expires_at = NULL`))
			add("running that was never attempted", status, update(`attempt = 0`))
			add("running that never started", status, update(`started_at = NULL`))
			add("running that was stored so, without a lease", status, insertJob(status, ""))
			continue
		}
		add(s+" with an owner", status, update(`lease_owner = 'w'`))
		add(s+" with an end of a lease", status, update(`lease_expires_at = now()`))
		add(s+" stored with a lease", status, insertJob(status, "w"))
	}
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			tx := begin(t, db, pgx.ReadCommitted)
			if err := c.try(t.Context(), tx, rowIn(t, tx, c.from)); sqlState(err) != "23514" {
				t.Errorf("got %v, want a check violation", err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func insertJob(status Status, owner string) attemptToMove {
	return func(ctx context.Context, db DB, _ ID) error {
		return one(db.Exec(ctx, `
			INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, lease_owner, lease_expires_at, started_at)
			VALUES (gen_random_uuid(), 'greet', '1', $1::text::outbox.job_status, 1, 1, nullif($2, ''), CASE WHEN $2 <> '' THEN now() END, now())`,
			status, owner))
	}
}

// Partitions are made by a function, one a day: each must have the rules.
func TestEveryPartitionOfTheHistoryHasTheRules(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `SELECT outbox.ensure_days(40)`) // beyond those of the migration
	rows, err := db.Query(t.Context(), `SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass`)
	if err != nil {
		t.Fatal(err)
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(partitions) != 42 {
		t.Fatalf("%d partitions, %v; want 42", len(partitions), err)
	}
	for _, p := range partitions {
		lacks := ask[string](t, db, `
			SELECT concat_ws(', ',
			    CASE WHEN NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1::text::regclass AND tgname = 'history_legal_move') THEN 'the trigger' END,
			    CASE WHEN NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = $1::text::regclass AND conname = 'history_legal_move') THEN 'the constraint' END,
			    CASE WHEN NOT EXISTS (SELECT FROM pg_index WHERE indrelid = $1::text::regclass) THEN 'the index' END)`, p)
		if lacks != "" {
			t.Errorf("%s lacks %s", p, lacks)
		}
	}
}
