package operator_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// world is a whole database, as the oracle reads it: all rows, and no index.
type world struct {
	Jobs    []worldJob
	Queues  map[string]worldQueue
	Workers []worldWorker
	Parked  map[string]bool // by tenant, queue and key
	Now     time.Time
}

type worldJob struct {
	ID                            outbox.ID
	Tenant                        outbox.ID
	Queue, Kind, Status           string
	Priority                      int16
	RunAt                         time.Time
	Key                           *string
	MaxActive                     *int16
	Ordered                       *bool
	LinePosition                  *int64
	OnDeath                       *string
	Lease                         *time.Time
	Owner                         *string
	Deadline, Cancel, Unavailable *time.Time
}

type worldQueue struct {
	Paused     bool
	MaxRunning int
}

type worldWorker struct {
	Name          string
	Queues, Kinds []string
	Missing       bool
}

func (j worldJob) keyName() string { return j.Tenant.String() + " " + j.Queue + " " + *j.Key }

// compare is the order of two jobs of a line, or of what is blocked by a key.
func (j worldJob) inLineBefore(other worldJob) bool {
	return cmp.Or(cmp.Compare(*j.LinePosition, *other.LinePosition), slices.Compare(j.ID[:], other.ID[:])) < 0
}

// oracle derives the codes of a job's reasons from all there is, one question after the other.
func (w *world) oracle(j worldJob, everything bool) string {
	var why []string
	late := j.Deadline != nil && !j.Deadline.After(w.Now)
	if j.Status == "failed" || j.Status == "dead" {
		return "dead_letter"
	}
	if j.Status == "running" {
		lapsed := !j.Lease.After(w.Now)
		if lapsed {
			why = append(why, "lease_lapsed")
		}
		if late {
			why = append(why, "deadline_passed")
		}
		if j.Cancel != nil {
			why = append(why, "cancel_requested")
		}
		if !lapsed {
			why = append(why, "running")
		}
		if everything && !slices.ContainsFunc(w.Workers, func(x worldWorker) bool { return x.Name == *j.Owner && !x.Missing }) {
			why = append(why, "worker_missing")
		}
		return strings.Join(why, " ")
	}
	due := !j.RunAt.After(w.Now)
	if late {
		why = append(why, "deadline_passed")
	}
	if j.Status == "created" {
		why = append(why, "held")
	}
	waits := j.Status == "pending" || j.Status == "retrying"
	switch {
	case due:
	case waits && j.Unavailable != nil:
		why = append(why, "dependency_away")
	case j.Status == "retrying":
		why = append(why, "retrying")
	default:
		why = append(why, "not_due")
	}
	if w.Queues[j.Queue].Paused {
		why = append(why, "queue_paused")
	}
	capacity, works, handles := 0, false, false
	for _, x := range w.Workers {
		if !x.Missing && slices.Contains(x.Queues, j.Queue) {
			works, capacity = true, capacity+2
			handles = handles || slices.Contains(x.Kinds, j.Kind)
		}
	}
	if everything && !works {
		why = append(why, "no_dispatcher")
	} else if everything && !handles {
		why = append(why, "no_handler")
	}
	ofTheKey := w.ofTheKey(j)
	why = append(why, ofTheKey...)
	running := 0
	for _, x := range w.Jobs {
		if x.Queue == j.Queue && x.Status == "running" {
			running++
		}
	}
	if limit := w.Queues[j.Queue].MaxRunning; limit > 0 && !everything {
		why = append(why, "queue_limited")
	} else if limit > 0 && running >= limit {
		why = append(why, "queue_full")
	}
	if due && slices.ContainsFunc(w.Jobs, func(x worldJob) bool {
		return x.Tenant == j.Tenant && x.Queue == j.Queue && x.Priority == j.Priority && x.Kind == j.Kind && x.Unavailable != nil &&
			(x.Status == "pending" || x.Status == "retrying") && x.RunAt.After(w.Now)
	}) {
		why = append(why, "dependency_away")
	}
	if everything && capacity > 0 && running >= capacity {
		why = append(why, "workers_busy")
	}
	if j.Status == "blocked" && len(ofTheKey) == 0 {
		why = append(why, "key_free")
	}
	before := slices.ContainsFunc(w.Jobs, func(x worldJob) bool {
		return x.Tenant == j.Tenant && x.Queue == j.Queue && x.Priority == j.Priority && (x.Key == nil) == (j.Key == nil) &&
			(x.Status == "pending" || x.Status == "retrying") && cmp.Or(x.RunAt.Compare(j.RunAt), slices.Compare(x.ID[:], j.ID[:])) < 0
	})
	switch {
	case waits && due && !late && before:
		why = append(why, "turn")
	case len(why) == 0:
		why = append(why, "due")
	}
	return strings.Join(why, " ")
}

func (w *world) ofTheKey(j worldJob) (why []string) {
	if j.Key == nil {
		return nil
	}
	running, most := 0, 1
	if j.MaxActive != nil {
		most = int(*j.MaxActive)
	}
	var line []worldJob
	for _, x := range w.Jobs {
		if x.Key == nil || x.keyName() != j.keyName() {
			continue
		}
		if x.Status == "running" {
			running++
		}
		passedOver := (x.Status == "failed" || x.Status == "dead") && x.OnDeath != nil && *x.OnDeath == "skip"
		if x.Ordered != nil && j.Ordered != nil && x.Status != "created" && !passedOver {
			line = append(line, x)
		}
	}
	if w.Parked[j.keyName()] {
		why = append(why, "key_parked")
	}
	behind := ""
	if len(line) > 0 {
		head := line[0]
		for _, x := range line {
			if x.inLineBefore(head) {
				head = x
			}
		}
		switch {
		case head.ID == j.ID:
		case head.Status == "failed" || head.Status == "dead":
			why = append(why, "key_dead_letter")
		default:
			behind = "key_behind"
		}
	}
	if running >= most {
		why = append(why, "key_busy")
	}
	if behind != "" {
		why = append(why, behind)
	}
	return why
}

// populate makes a random database. What it makes may be a moment's that no engine leaves for long, such as a free key
// with blocked jobs, but nothing that the tables refuse.
func populate(t *testing.T, db *pgxpool.Pool, r *rand.Rand, tenants []outbox.ID) {
	t.Helper()
	exec := func(sql string, args ...any) {
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`TRUNCATE outbox.jobs, outbox.keys, outbox.workers, outbox.queues, outbox.queue_usage CASCADE`)
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	slots := map[string]int{}
	for i := range 4 + r.IntN(14) {
		status := one("created", "pending", "pending", "pending", "blocked", "running", "running", "retrying", "failed", "dead")
		tenant, queue, kind := tenants[r.IntN(len(tenants))], one("default", "default", "bulk"), one("mail", "mail", "bill")
		var key, onDeath, ordered, position, maxActive, slot any
		name := fmt.Sprint(tenant, queue, "k")
		if status == "blocked" || r.IntN(2) == 0 {
			key = "k"
			switch r.IntN(3) {
			case 0:
				ordered, position = true, r.IntN(5)
				onDeath = map[int]any{0: nil, 1: "skip", 2: "park"}[r.IntN(3)]
			case 1:
				maxActive = 2
			}
		}
		if status == "running" && key != nil {
			if slot = 0; slots[name] > 0 { // the index of slots lets one job run in each
				key, ordered, position, onDeath, maxActive, slot = nil, nil, nil, nil, nil, nil
			}
			slots[name]++
		}
		runAt := []time.Duration{-3, -2, -1, -1, 2}[r.IntN(5)] * time.Hour // none becomes due meanwhile
		if status == "blocked" || status == "running" {
			runAt = -time.Hour
		}
		exec(`INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, status, priority, run_at, key, ordered, line_position, on_death, max_active, slot,
				attempt, epoch, lease_owner, lease_expires_at, started_at, cancel_requested_at, deadline, unavailable_since, failed_at, error_fingerprint)
			SELECT $1, $2, $3, $4, '{}', s, $6, now() + $7::interval + $8 * interval '1 ms', $9, $10, $11, $12, $13, $14, 1, 1,
				CASE WHEN s = 'running' THEN $15::text END, CASE WHEN s = 'running' THEN now() + $16::interval END, CASE WHEN s = 'running' THEN now() END,
				CASE WHEN s = 'running' AND $17 THEN now() END, $18::timestamptz, CASE WHEN s IN ('pending', 'retrying') AND $19 THEN now() END,
				CASE WHEN s IN ('failed', 'dead') THEN now() END, CASE WHEN s IN ('failed', 'dead') THEN 'x' END
			FROM (SELECT $5::text::outbox.job_status AS s) AS given`,
			outbox.NewID(), tenant, queue, kind, status, r.IntN(2), runAt.String(), i, key, ordered, position, onDeath, maxActive, slot,
			one("w1", "w2", "w3"), one("-1 s", "1 h"), r.IntN(3) == 0, map[int]any{0: time.Now().Add(-time.Minute), 1: time.Now().Add(time.Hour)}[r.IntN(8)], r.IntN(6) == 0)
	}
	for _, w := range []string{"w1", "w2"} {
		if r.IntN(3) > 0 {
			exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at) VALUES ($1, 'v', $2, array_fill(2, ARRAY[cardinality($2::text[])]), $3, true, now() - $4::interval)`,
				w, [][]string{{"default"}, {"bulk"}, {"default", "bulk"}}[r.IntN(3)], [][]string{{"mail"}, {"bill"}, {"mail", "bill"}}[r.IntN(3)], one("1 s", "1 s", "1 h"))
		}
	}
	if r.IntN(3) == 0 {
		exec(`INSERT INTO outbox.queues (queue, paused_at, max_running) VALUES ($1, CASE WHEN $2 THEN now() END, nullif($3, 0))`, one("default", "bulk"), r.IntN(2) == 0, r.IntN(3))
	}
	for _, tenant := range tenants {
		if r.IntN(4) == 0 {
			exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', CASE WHEN $2 THEN now() END)`, tenant, r.IntN(2) == 0)
		}
	}
}

func readWorld(t *testing.T, db *pgxpool.Pool) *world {
	t.Helper()
	w := &world{Queues: map[string]worldQueue{}, Parked: map[string]bool{}}
	var err error
	rows, _ := db.Query(t.Context(), `SELECT id, tenant_id, queue, kind, status::text, priority, run_at, key, max_active, ordered, line_position, on_death,
		lease_expires_at, lease_owner, deadline, cancel_requested_at, unavailable_since FROM outbox.jobs`)
	if w.Jobs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[worldJob]); err != nil {
		t.Fatal(err)
	}
	rows, _ = db.Query(t.Context(), `SELECT worker, queues, kinds, seen_at < now() - interval '150 s' FROM outbox.workers`)
	if w.Workers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[worldWorker]); err != nil {
		t.Fatal(err)
	}
	var name string
	var q worldQueue
	rows, _ = db.Query(t.Context(), `SELECT queue, paused_at IS NOT NULL, coalesce(max_running, 0) FROM outbox.queues`)
	if _, err := pgx.ForEachRow(rows, []any{&name, &q.Paused, &q.MaxRunning}, func() error { w.Queues[name] = q; return nil }); err != nil {
		t.Fatal(err)
	}
	rows, _ = db.Query(t.Context(), `SELECT tenant_id || ' ' || queue || ' ' || key FROM outbox.keys WHERE parked_at IS NOT NULL`)
	if _, err := pgx.ForEachRow(rows, []any{&name}, func() error { w.Parked[name] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), `SELECT now()`).Scan(&w.Now); err != nil {
		t.Fatal(err)
	}
	return w
}

// In random states each job of root and of another tenant has the reasons that follow from all rows, also as the API's
// login sees them: all tenants', and its own.
func TestExplainAgreesWithAnOracle(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tenants := []outbox.ID{outbox.RootTenant, outbox.NewID()}
	theirs := operator.New(pgtest.Login(t, db, "outbox_api"))
	met := map[string]int{}
	for explained := 0; explained < 1000; {
		populate(t, db, r, tenants)
		w := readWorld(t, db)
		for _, j := range w.Jobs {
			explained++
			everything := r.IntN(3) > 0
			ctx := operator.WithTenant(t.Context(), outbox.ID{})
			if !everything {
				ctx = operator.WithTenant(t.Context(), j.Tenant)
			}
			e, err := theirs.Explain(ctx, j.ID)
			if err != nil {
				t.Fatal(err)
			}
			got, want := codes(e), w.oracle(j, everything)
			if got != want {
				t.Fatalf("everything %t: job %+v\nhas %s\nwant       %s\nof %+v", everything, j, got, want, w)
			}
			for code := range strings.FieldsSeq(got) {
				met[code]++
			}
		}
	}
	if len(met) < 20 {
		t.Errorf("only %d reasons were met: %v", len(met), met)
	}
}
