package watch_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

type rig struct {
	*testing.T
	db *pgxpool.Pool
	of outbox.ID
}

func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.db.Exec(r.Context(), sql, args...); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

// enqueue stores a job that has been due for five minutes.
func (r *rig) enqueue(opts outbox.Options) outbox.ID {
	r.Helper()
	opts.Tenant = r.of
	id, err := outbox.Enqueue(r.Context(), r.db, outbox.Raw{KindName: "mail", Payload: []byte("{}")}, opts)
	if err != nil {
		r.Fatal(err)
	}
	r.exec(`UPDATE outbox.jobs SET run_at = now() - interval '5 minutes' WHERE id = $1`, id)
	return id
}

// awaySQL has a job wait for what it needs.
const awaySQL = `UPDATE outbox.jobs SET unavailable_since = now(), run_at = now() + interval '1 minute' WHERE id = $1`

const runSQL = `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w1', started_at = now(), lease_expires_at = now() + $2::interval WHERE id = $1`

// Each problem is found while it is there, of root and of another tenant, and a single tenant sees of it what is
// its own.
func TestEachProblemIsFound(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		cause  func(*rig)
		want   string // kinds, with ! for a problem
		single string // what the tenant sees
	}{
		"nothing": {func(r *rig) {}, "", ""},
		"no handler": {func(r *rig) {
			r.exec(`UPDATE outbox.workers SET kinds = '{bill}'`)
			r.enqueue(outbox.Options{})
		}, "no_handler!", "late"},
		"late": {func(r *rig) { r.enqueue(outbox.Options{}) }, "late", "late"},
		"paused": {func(r *rig) {
			r.enqueue(outbox.Options{})
			r.exec(`INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`)
		}, "queue_paused", "queue_paused"},
		"paused, and nothing waits": {func(r *rig) {
			r.exec(`INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`)
		}, "", ""},
		"full": {func(r *rig) {
			r.exec(`INSERT INTO outbox.queues (queue, max_running) VALUES ('default', 1)`)
			r.exec(runSQL, r.enqueue(outbox.Options{}), "1 minute")
			r.enqueue(outbox.Options{})
		}, "queue_full", "late"},
		"lapsed": {func(r *rig) { r.exec(runSQL, r.enqueue(outbox.Options{}), "-1 minute") }, "lease_lapsed!", ""},
		"dead": {func(r *rig) {
			r.exec(`UPDATE outbox.jobs SET status = 'dead', failed_at = now() - interval '1 hour', error_fingerprint = 'f', last_error_code = 'smtp' WHERE id = $1`, r.enqueue(outbox.Options{}))
		}, "dead_letters", "dead_letters"},
		"dying": {func(r *rig) {
			id := r.enqueue(outbox.Options{})
			r.exec(runSQL, id, "1 minute")
			r.exec(`UPDATE outbox.jobs SET status = 'dead', lease_owner = NULL, lease_expires_at = NULL, failed_at = now(), error_fingerprint = 'f' WHERE id = $1`, id)
		}, "dead_letters!", "dead_letters!"},
		"away": {func(r *rig) { r.exec(awaySQL, r.enqueue(outbox.Options{})) }, "dependency_away", "dependency_away"},
		"back": {func(r *rig) {
			r.exec(`UPDATE outbox.jobs SET unavailable_since = now(), run_at = now() - interval '10 minutes' WHERE id = $1`, r.enqueue(outbox.Options{}))
		}, "late", "late"},
		"one target away": {func(r *rig) {
			r.exec(awaySQL, r.enqueue(outbox.Options{}))
			r.enqueue(outbox.Options{})
		}, "dependency_away late", "dependency_away late"},
		"a sink's messages": {func(r *rig) {
			r.exec(`UPDATE outbox.jobs SET kind = 'relay:s' WHERE id = $1`, r.enqueue(outbox.Options{}))
		}, "", ""},
		"guarded": {func(r *rig) {
			id := r.enqueue(outbox.Options{})
			r.exec(runSQL, id, "-1 minute")
			r.exec(`INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at) VALUES ($1, 1, now() + interval '1 minute')`, id)
		}, "", ""},
		"dying behind many": {func(r *rig) {
			r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, failed_at, error_fingerprint)
				SELECT outbox.uuid_v7(), $1, 'mail', '{}', 'dead', now() - CASE WHEN i < 60 THEN interval '1 hour' ELSE interval '0' END, 'f' || (CASE WHEN i < 60 THEN i % 30 ELSE 30 END) FROM generate_series(0, 60) AS i`, r.of)
		}, "dead_letters!" + strings.Repeat(" dead_letters", 19), "dead_letters!" + strings.Repeat(" dead_letters", 19)},
		"overdue behind many": {func(r *rig) {
			r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) SELECT gen_random_uuid(), 'a' || i, '1 day', 'mail', '{}', now() + interval '1 hour' FROM generate_series(1, 10000) AS i`)
			r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'nightly', '1 day', 'mail', '{}', now() - interval '1 hour')`, r.of)
		}, "schedule_overdue!", "schedule_overdue!"},
		"parked": {func(r *rig) {
			r.exec(`UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, r.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k"}}))
			r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', now())`, r.of)
		}, "key_parked", "key_parked"},
		"overdue": {func(r *rig) {
			r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'nightly', '1 day', 'mail', '{}', now() - interval '1 hour')`, r.of)
		}, "schedule_overdue!", "schedule_overdue!"},
		"silent": {func(r *rig) { r.exec(`UPDATE outbox.workers SET seen_at = now() - interval '10 minutes'`) }, "worker_missing", ""},
		"deaf":   {func(r *rig) { r.exec(`UPDATE outbox.workers SET hearing = false`) }, "worker_not_listening", ""},
		"several": {func(r *rig) {
			r.exec(awaySQL, r.enqueue(outbox.Options{}))
			r.exec(`UPDATE outbox.workers SET hearing = false`)
			r.exec(runSQL, r.enqueue(outbox.Options{Queue: "other"}), "-1 minute")
		}, "lease_lapsed! dependency_away worker_not_listening", "dependency_away"},
	}
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		t.Run(fmt.Sprint(tenant == outbox.RootTenant), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			// Triggers would refuse some of the short cuts.
			if _, err := db.Exec(t.Context(), `ALTER TABLE outbox.jobs DISABLE TRIGGER USER`); err != nil {
				t.Fatal(err)
			}
			api := pgtest.Login(t, db, "outbox_api")
			for name, tt := range cases {
				t.Run(name, func(t *testing.T) {
					pgtest.Empty(t, db)
					r := &rig{T: t, db: db, of: tenant}
					r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, started_at) VALUES ('w1', 'v', '{default,other}', '{3,3}', '{mail}', true, now() - interval '1 hour')`)
					tt.cause(r)
					all := map[outbox.ID]string{{}: tt.want, r.of: tt.single, outbox.NewID(): ""}
					if strings.HasPrefix(name, "paused") {
						maps.DeleteFunc(all, func(_ outbox.ID, want string) bool { return want == "" })
					}
					r.finds(api, all)
				})
			}
		})
	}
}

// finds expects the kinds of problems that each tenant sees, by the owner's login and by the API's.
func (r *rig) finds(api *pgxpool.Pool, wanted map[outbox.ID]string) {
	r.Helper()
	for login, pool := range map[string]*pgxpool.Pool{"the owner": r.db, "the API": api} {
		p := watch.NewProblems(operator.New(pool), watch.NewExaminations(r.db), nil)
		for tenant, want := range wanted {
			found, err := p.Look(r.Context(), tenant)
			if err != nil {
				r.Fatal(err)
			}
			if got := kindsOf(found); got != want {
				r.Errorf("by %s, tenant %s: %q, want %q: %+v", login, tenant, got, want, found.Problems)
			}
			for _, p := range found.Problems { // what helps touches no other tenant's
				if c := p.Act.Command; strings.Contains(c, "dlq replay") && strings.HasSuffix(c, " --tenant "+tenant.String()) == tenant.IsZero() {
					r.Errorf("of tenant %s, what helps is %s", tenant, c)
				}
			}
		}
	}
}

// kindsOf leaves out what a test server's settings make doctor find.
func kindsOf(f watch.Findings) string {
	var kinds []string
	for _, p := range f.Problems {
		if p.Kind == watch.Installation {
			continue
		}
		kinds = append(kinds, p.Kind+map[doctor.Severity]string{doctor.Problem: "!"}[p.Severity])
	}
	return strings.Join(kinds, " ")
}

// What the database says of a question that it does not answer is for viewers of all tenants, and for the log.
func TestAQuestionThatIsNotAnsweredIsAProblem(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{{}, outbox.RootTenant, outbox.NewID()} {
		r := &rig{T: t, db: pgtest.New(t), of: tenant}
		var logged []string
		p := watch.NewProblems(operator.New(r.db), watch.NewExaminations(r.db), func(_ context.Context, err error) { logged = append(logged, err.Error()) })
		r.exec(`ALTER TABLE outbox.schedules RENAME TO hidden`)
		found, err := p.Look(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(found.Problems, func(p watch.Problem) bool {
			return p.Kind == watch.Unanswered && strings.Contains(p.Sentence, "with schedules")
		})
		if i < 0 {
			t.Fatalf("tenant %s: no problem says that the schedules are unknown: %+v", tenant, found.Problems)
		}
		if named := strings.Contains(found.Problems[i].Sentence, "outbox.schedules"); named != tenant.IsZero() {
			t.Errorf("tenant %s: %q", tenant, found.Problems[i].Sentence)
		}
		if !slices.ContainsFunc(logged, func(line string) bool { return strings.Contains(line, "outbox.schedules") }) {
			t.Errorf("tenant %s: logged %q, want the cause", tenant, logged)
		}
	}
}

// Hundreds that look at once look once, and so do those of the next half minute.
func TestProblemsAreLookedForOnceForAll(t *testing.T) {
	t.Parallel()
	r := &rig{T: t, db: pgtest.New(t), of: outbox.RootTenant}
	p := watch.NewProblems(operator.New(r.db), watch.NewExaminations(r.db), nil)
	first, err := p.Look(t.Context(), outbox.ID{})
	if err != nil {
		t.Fatal(err)
	}
	r.enqueue(outbox.Options{})
	seen := make(chan watch.Findings)
	for range 100 {
		go func() {
			found, _ := p.Look(context.Background(), outbox.ID{})
			seen <- found
		}()
	}
	for range 100 {
		if found := <-seen; !found.AsOf.Equal(first.AsOf) {
			t.Fatalf("looked at %s and again at %s", first.AsOf, found.AsOf)
		}
	}
	if found, err := p.Look(t.Context(), r.of); err != nil || kindsOf(found) != "late" {
		t.Errorf("another tenant's look: %+v, %v; want one of its own", found, err)
	}
}

func TestTheInstallationIsExaminedForAllTenantsOnly(t *testing.T) {
	t.Parallel()
	r := &rig{T: t, db: pgtest.New(t), of: outbox.RootTenant}
	r.exec(`DO $$ DECLARE day text; BEGIN
		FOR day IN SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'history_2%' AND relname > 'history_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') LOOP
			EXECUTE 'DROP TABLE outbox.' || day;
		END LOOP; END $$`)
	p := watch.NewProblems(operator.New(r.db), watch.NewExaminations(r.db), nil)
	missing := func(tenant outbox.ID) bool {
		found, err := p.Look(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found.Problems, func(p watch.Problem) bool {
			return p.Kind == watch.Installation && p.Severity == doctor.Problem && strings.Contains(p.Sentence, "partitions for 0 days ahead")
		})
	}
	if !missing(outbox.ID{}) || missing(r.of) {
		t.Errorf("tomorrow has no partition: all tenants see it: %t, one: %t", missing(outbox.ID{}), missing(r.of))
	}
}

func TestAnOverviewIsMadeOnceForAll(t *testing.T) {
	t.Parallel()
	r := &rig{T: t, db: pgtest.New(t), of: outbox.NewID()}
	r.enqueue(outbox.Options{})
	o := watch.NewOverviews(operator.New(pgtest.Login(t, r.db, "outbox_api")))
	first, err := o.Look(t.Context())
	if err != nil || first.Jobs(outbox.Pending) != 1 || first.OldestDue().IsZero() {
		t.Fatalf("overview %+v, %v; want a job of any tenant", first, err)
	}
	if again, err := o.Look(t.Context()); err != nil || !again.AsOf.Equal(first.AsOf) {
		t.Errorf("looked at %s and again at %s, %v", first.AsOf, again.AsOf, err)
	}
}

func TestTheDocumentationListsEveryKindOfProblem(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range watch.ProblemKinds() {
		if !strings.Contains(string(page), "\n| `"+kind+"` |") {
			t.Errorf("docs/operate/operations.md does not list %s", kind)
		}
	}
}

// Of many problems of a kind the worst are shown, and the others are counted.
func TestTheWorstOfManyProblemsAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   outbox.ID
		look outbox.ID
		kind string
	}{"all": {outbox.RootTenant, outbox.ID{}, watch.NoHandler}, "another tenant": {outbox.NewID(), outbox.ID{}, watch.Late}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t, pgtest.New(t), c.of}
			if c.kind == watch.Late {
				c.look = c.of
			}
			const queues = 23
			r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, run_at)
				SELECT outbox.uuid_v7(), $1, 'mail', 'q' || lpad(q::text, 2, '0'), '{}', now() - interval '5 minutes'
				FROM generate_series(1, $2::int) AS q CROSS JOIN LATERAL generate_series(1, q)`, c.of, queues)
			r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT $1, 'mail', 'k' || n, now() FROM generate_series(1, 25) AS n`, c.of)
			found, err := watch.NewProblems(operator.New(r.db), watch.NewExaminations(r.db), nil).Look(t.Context(), c.look)
			if err != nil {
				t.Fatal(err)
			}
			var jobs []int64
			for _, p := range found.Problems {
				if p.Kind == c.kind {
					jobs = append(jobs, p.Jobs)
				}
			}
			if len(jobs) != 20 || jobs[0] != queues || jobs[19] != queues-19 {
				t.Errorf("problems with %v jobs are found, want the 20 with most", jobs)
			}
			if want := []watch.More{{c.kind, 3, false}, {watch.KeyParked, 1, true}}; !slices.Equal(found.More, want) {
				t.Errorf("what is left out is %v, want %v", found.More, want)
			}
		})
	}
}
