package operator_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// plight brings a job into a situation.
type plight struct {
	*testing.T
	db *pgxpool.Pool
	o  *operator.Operator
	of outbox.ID // the tenant
}

func (p *plight) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.db.Exec(p.Context(), sql, args...); err != nil {
		p.Fatal(err)
	}
}

func (p *plight) enqueue(opts outbox.Options) outbox.ID {
	p.Helper()
	opts.Tenant = p.of
	return enqueue(p.T, p.db, "mail", opts)
}

// run has a job run on w1.
func (p *plight) run(id outbox.ID) outbox.ID {
	p.Helper()
	p.exec(`UPDATE outbox.jobs SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'w1', slot = CASE WHEN key IS NOT NULL THEN 0 END,
		started_at = now() - interval '1 minute', lease_expires_at = now() + interval '15 s' WHERE id = $1`, id)
	return id
}

func (p *plight) fail(id outbox.ID, status outbox.Status) outbox.ID {
	p.Helper()
	p.exec(`UPDATE outbox.jobs SET status = $2::text::outbox.job_status, epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, last_error_code = 'smtp', last_error_message = 'full',
		failed_at = CASE WHEN $2::text IN ('failed', 'dead') THEN now() END, run_at = CASE WHEN $2::text = 'retrying' THEN now() + interval '1 hour' ELSE run_at END WHERE id = $1`, p.run(id), string(status))
	return id
}

func (p *plight) worker(name, queue, kind string, seen time.Duration) {
	p.Helper()
	p.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at) VALUES ($1, 'v2', ARRAY[$2], '{3}', ARRAY[$3], true, now() - $4::interval)`,
		name, queue, kind, seen.String())
}

func (p *plight) block(id outbox.ID) outbox.ID {
	p.Helper()
	p.exec(`UPDATE outbox.jobs SET status = 'blocked' WHERE id = $1`, id)
	return id
}

// A job in each situation has its reasons, and those that a single tenant may see are no others.
func TestExplainSaysWhyAJobDoesNotRun(t *testing.T) {
	t.Parallel()
	key := func(rules outbox.KeyRules) outbox.Options {
		rules.Name = "k"
		return outbox.Options{Key: rules}
	}
	cases := map[string]struct {
		bring func(p *plight) outbox.ID
		want  string // codes; (not shown to a single tenant), [shown to it instead]
		says  string // in the first sentence
		act   string
	}{
		"closed": {func(p *plight) outbox.ID {
			id := p.enqueue(outbox.Options{})
			if _, err := p.o.Cancel(p.Context(), id); err != nil {
				p.Fatal(err)
			}
			return id
		}, "closed", "ended as cancelled", ""},
		"dead":   {func(p *plight) outbox.ID { return p.fail(p.enqueue(outbox.Options{}), outbox.Dead) }, "dead_letter", "used up its attempts (1 of 25)", "jobs retry ID"},
		"failed": {func(p *plight) outbox.ID { return p.fail(p.enqueue(outbox.Options{}), outbox.Failed) }, "dead_letter", "after error smtp", "jobs retry ID"},
		"dead and late": {func(p *plight) outbox.ID {
			id := p.fail(p.enqueue(outbox.Options{}), outbox.Dead)
			p.exec(`UPDATE outbox.jobs SET deadline = now() WHERE id = $1`, id)
			return id
		}, "dead_letter", "can only be dismissed", "jobs dismiss ID"},
		"running": {func(p *plight) outbox.ID { return p.run(p.enqueue(outbox.Options{})) }, "running", "running on w1", "jobs cancel ID"},
		"running on one that is missing": {func(p *plight) outbox.ID {
			p.exec(`UPDATE outbox.workers SET seen_at = now() - interval '10 minutes' WHERE worker = 'w1'`)
			return p.run(p.enqueue(outbox.Options{}))
		}, "running (worker_missing)", "running on w1", "jobs cancel ID"},
		"running on nobody": {func(p *plight) outbox.ID {
			p.exec(`DELETE FROM outbox.workers WHERE worker = 'w1'`)
			return p.run(p.enqueue(outbox.Options{}))
		}, "running (worker_missing)", "running on w1", "jobs cancel ID"},
		"lapsed": {func(p *plight) outbox.ID {
			id := p.run(p.enqueue(outbox.Options{}))
			p.exec(`UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 s' WHERE id = $1`, id)
			return id
		}, "lease_lapsed", "lapsed at", ""},
		"guarded": {func(p *plight) outbox.ID {
			id := p.run(p.enqueue(outbox.Options{}))
			p.exec(`UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 s' WHERE id = $1`, id)
			p.exec(`INSERT INTO outbox.lease_extensions (job_id, epoch, expires_at) SELECT id, epoch, now() + interval '15 s' FROM outbox.jobs WHERE id = $1`, id)
			return id
		}, "running", "running on w1", "jobs cancel ID"},
		"asked to stop": {func(p *plight) outbox.ID {
			id := p.run(p.enqueue(outbox.Options{}))
			if _, err := p.o.Cancel(p.Context(), id); err != nil {
				p.Fatal(err)
			}
			return id
		}, "cancel_requested running", "asked to stop", ""},
		"late": {func(p *plight) outbox.ID {
			id := p.enqueue(outbox.Options{})
			p.exec(`UPDATE outbox.jobs SET deadline = now() WHERE id = $1`, id)
			return id
		}, "deadline_passed", "deadline passed", ""},
		"held":        {func(p *plight) outbox.ID { return p.enqueue(outbox.Options{Hold: true}) }, "held", "enqueued held", "jobs release ID"},
		"held, later": {func(p *plight) outbox.ID { return p.enqueue(outbox.Options{Hold: true, Delay: time.Hour}) }, "held not_due", "enqueued held", "jobs release ID"},
		"not due":     {func(p *plight) outbox.ID { return p.enqueue(outbox.Options{Delay: time.Hour}) }, "not_due", "not due until", "jobs retry ID"},
		"at infinity": {func(p *plight) outbox.ID {
			id := p.enqueue(outbox.Options{Delay: time.Hour})
			p.exec(`UPDATE outbox.jobs SET run_at = '9999-01-01' WHERE id = $1`, id)
			return id
		}, "not_due", "9999-01-01", "jobs retry ID"},
		"retrying": {func(p *plight) outbox.ID { return p.fail(p.enqueue(outbox.Options{}), outbox.Retrying) }, "retrying", "Attempt 2 of 25 is due at", "jobs retry ID"},
		"away": {func(p *plight) outbox.ID {
			id := p.fail(p.enqueue(outbox.Options{}), outbox.Retrying)
			p.exec(`UPDATE outbox.jobs SET unavailable_since = now() - interval '1 minute' WHERE id = $1`, id)
			return id
		}, "dependency_away", "unavailable since", "jobs retry ID"},
		"another found it away": {func(p *plight) outbox.ID {
			p.exec(`UPDATE outbox.jobs SET unavailable_since = now() - interval '1 minute' WHERE id = $1`, p.fail(p.enqueue(outbox.Options{}), outbox.Retrying))
			return p.enqueue(outbox.Options{})
		}, "dependency_away", "Jobs of kind mail have found", ""},
		"paused": {func(p *plight) outbox.ID {
			if err := p.o.As(operator.Actor{Name: "ada"}).Because("tests").Pause(p.Context(), "default"); err != nil {
				p.Fatal(err)
			}
			return p.enqueue(outbox.Options{})
		}, "queue_paused", "Queue default has been paused since", "queues resume default"},
		"no dispatcher": {func(p *plight) outbox.ID { return p.enqueue(outbox.Options{Queue: "bulk"}) }, "(no_dispatcher) [due]", "No present dispatcher works queue bulk: w9 (v2) was last seen", ""},
		"no handler": {func(p *plight) outbox.ID {
			p.exec(`UPDATE outbox.workers SET kinds = '{bill}' WHERE worker = 'w1'`)
			return p.enqueue(outbox.Options{})
		}, "(no_handler) [due]", "has a handler for kind mail: w9 (v2) was last seen", ""},
		"parked": {func(p *plight) outbox.ID {
			p.fail(p.enqueue(key(outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey})), outbox.Dead)
			id := p.block(p.enqueue(key(outbox.KeyRules{Ordered: true, OnDeath: outbox.ParkKey})))
			p.exec(`INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ($1, 'default', 'k')`, p.of)
			p.exec(`SELECT outbox.promote_keys(ARRAY[$1::uuid], '{default}', '{k}', '{1}')`, p.of)
			return id
		}, "key_parked key_dead_letter", "parked since", "keys unblock --queue default --tenant TENANT k"},
		"behind a dead letter": {func(p *plight) outbox.ID {
			p.fail(p.enqueue(key(outbox.KeyRules{Ordered: true})), outbox.Dead)
			return p.block(p.enqueue(key(outbox.KeyRules{Ordered: true})))
		}, "key_dead_letter", "held up by dead letter", "keys unblock --queue default --tenant TENANT k"},
		"behind one that runs, in line": {func(p *plight) outbox.ID {
			p.run(p.enqueue(key(outbox.KeyRules{Ordered: true})))
			p.enqueue(key(outbox.KeyRules{Ordered: true}))
			return p.block(p.enqueue(key(outbox.KeyRules{Ordered: true})))
		}, "key_busy key_behind", "1 of 1 jobs of its key", ""},
		"behind one that is retried": {func(p *plight) outbox.ID {
			p.fail(p.enqueue(key(outbox.KeyRules{Ordered: true})), outbox.Retrying)
			return p.block(p.enqueue(key(outbox.KeyRules{Ordered: true})))
		}, "key_behind", "behind 1 job of its key", ""},
		"a key that is busy": {func(p *plight) outbox.ID {
			p.run(p.enqueue(key(outbox.KeyRules{})))
			p.block(p.enqueue(key(outbox.KeyRules{})))
			return p.block(p.enqueue(key(outbox.KeyRules{})))
		}, "key_busy", "1 of 1 jobs of its key", ""},
		"a key that is free": {func(p *plight) outbox.ID { return p.block(p.enqueue(key(outbox.KeyRules{}))) }, "key_free", "nothing of the key is in its way", ""},
		"a queue at its limit": {func(p *plight) outbox.ID {
			if _, _, err := p.o.Limit(p.Context(), "default", operator.Limits{MaxRunning: new(1)}); err != nil {
				p.Fatal(err)
			}
			p.run(p.enqueue(outbox.Options{}))
			return p.enqueue(outbox.Options{})
		}, "(queue_full) [queue_limited]", "is at its limit: 1 of 1 running", "queues limit --max-running N --rate N/INTERVAL default"},
		"a rate that is spent": {func(p *plight) outbox.ID {
			if _, _, err := p.o.Limit(p.Context(), "default", operator.Limits{Rate: &operator.Rate{Starts: 2, Interval: time.Hour}}); err != nil {
				p.Fatal(err)
			}
			p.exec(`INSERT INTO outbox.queue_usage (queue, start_times, start_counts) VALUES ('default', ARRAY[now() - interval '2 hours', now() - interval '20 minutes', now()], '{9,1,1}')`)
			return p.enqueue(outbox.Options{})
		}, "(queue_rate) [queue_limited]", "is spent until", "queues limit --max-running N --rate N/INTERVAL default"},
		"busy workers": {func(p *plight) outbox.ID {
			for range 3 {
				p.run(p.enqueue(outbox.Options{}))
			}
			return p.enqueue(outbox.Options{})
		}, "(workers_busy) [due]", "they run 3 jobs at once and hold 3", ""},
		"others before it": {func(p *plight) outbox.ID {
			p.enqueue(outbox.Options{})
			p.enqueue(outbox.Options{Queue: "bulk"})
			p.enqueue(outbox.Options{Priority: 1})
			p.enqueue(key(outbox.KeyRules{}))
			return p.enqueue(outbox.Options{})
		}, "turn", "with 1 job before it", ""},
		"others with keys before it": {func(p *plight) outbox.ID {
			p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "other"}})
			p.enqueue(outbox.Options{})
			return p.enqueue(key(outbox.KeyRules{}))
		}, "turn", "with 1 job before it", ""},
		"due": {func(p *plight) outbox.ID { return p.enqueue(outbox.Options{}) }, "due", "the next claim of queue default", ""},
		"many": {func(p *plight) outbox.ID {
			if err := p.o.Pause(p.Context(), "default"); err != nil {
				p.Fatal(err)
			}
			p.run(p.enqueue(key(outbox.KeyRules{})))
			return p.enqueue(outbox.Options{Hold: true, Delay: time.Hour, Key: outbox.KeyRules{Name: "k"}})
		}, "held not_due queue_paused key_busy", "held", "jobs release ID"},
	}
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		t.Run(fmt.Sprint(tenant == outbox.RootTenant), func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			theirs := operator.New(pgtest.Login(t, db, "outbox_api"))
			for name, tt := range cases {
				t.Run(name, func(t *testing.T) {
					pgtest.Empty(t, db)
					p := &plight{T: t, db: db, o: o, of: tenant}
					p.worker("w1", "default", "mail", 0)
					p.worker("w9", "bulk", "mail", 10*time.Minute)
					p.explains(theirs, tt.bring(p), tt.want, tt.says, tt.act)
				})
			}
		})
	}
}

// explains expects the reasons of a job to be these, by the owner's login and by the API's, for all tenants, for the
// job's own and for another.
func (p *plight) explains(theirs *operator.Operator, id outbox.ID, want, says, act string) {
	p.Helper()
	all, err := p.o.Explain(p.Context(), id)
	if err != nil {
		p.Fatal(err)
	}
	toAll, ofTenant := wantedCodes(want)
	if got := codes(all); got != toAll {
		p.Errorf("reasons: %s, want %s\n%+v", got, toAll, all.Reasons)
	}
	first := all.Reasons[0]
	if p.of == outbox.RootTenant {
		act = strings.ReplaceAll(act, " --tenant TENANT", "")
	}
	act = strings.NewReplacer("ID", id.String(), "TENANT", p.of.String(), "N/INTERVAL", "N/INTERVAL").Replace(act)
	if got := strings.TrimPrefix(first.Act.Command, "posthaste "); !strings.Contains(first.Sentence, says) || got != act {
		p.Errorf("first reason: %q with %q, want %q in it and %q", first.Sentence, got, says, act)
	}
	for login, asked := range map[string]*operator.Operator{"the API": theirs, "the owner": p.o} {
		one, err := asked.Explain(operator.WithTenant(p.Context(), p.of), id)
		if err != nil {
			p.Fatal(err)
		}
		if got := codes(one); got != ofTenant {
			p.Errorf("by %s, a single tenant is shown %s, want %s", login, got, ofTenant)
		}
		for _, r := range one.Reasons {
			if len(r.Workers) > 0 || r.By != "" || r.Because != "" {
				p.Errorf("by %s, a single tenant is shown %+v", login, r)
			}
		}
	}
	if whole, err := theirs.Explain(operator.WithTenant(p.Context(), outbox.ID{}), id); err != nil || codes(whole) != toAll {
		p.Errorf("all tenants by the API's login: %s, %v; want %s", codes(whole), err, toAll)
	}
	for _, owner := range []*operator.Operator{theirs, p.o} {
		if _, err := owner.Explain(operator.WithTenant(p.Context(), outbox.NewID()), id); !errors.Is(err, operator.ErrNotFound) {
			p.Errorf("another tenant: %v, want ErrNotFound", err)
		}
	}
}

// wantedCodes reads the notation of the table above.
func wantedCodes(text string) (all, ofTenant string) {
	var every, one []string
	for word := range strings.FieldsSeq(text) {
		code := strings.Trim(word, "()[]")
		if word[0] != '[' {
			every = append(every, code)
		}
		if word[0] != '(' {
			one = append(one, code)
		}
	}
	return strings.Join(every, " "), strings.Join(one, " ")
}

func codes(e operator.Explanation) string {
	var all []string
	for _, r := range e.Reasons {
		all = append(all, string(r.Code))
	}
	return strings.Join(all, " ")
}

func TestExplanationsHaveEvidence(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	p := &plight{T: t, db: db, o: o, of: outbox.RootTenant}
	p.worker("w1", "default", "mail", 0)
	if err := o.As(operator.Actor{Name: "ada"}).Because("the relay is down").Pause(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	running := p.run(p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}}))
	p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	id := p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k", Ordered: true}})
	e, err := o.Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if codes(e) != "queue_paused key_busy key_behind turn" {
		t.Fatalf("reasons: %s", codes(e))
	}
	var got []operator.Evidence
	for _, r := range e.Reasons {
		if r.Since.IsZero() && r.Code != operator.WhyKeyBehind {
			t.Errorf("%s: no Since", r.Code)
		}
		got = append(got, r.Evidence)
	}
	want := []operator.Evidence{
		{By: "ada", Because: "the relay is down"},
		{Key: "k", Job: running, JobStatus: outbox.Running, Worker: "w1", Running: 1, Limit: 1, Ahead: 2},
		{Key: "k", Job: running, JobStatus: outbox.Running, Ahead: 2},
		{Ahead: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("evidence (-want +got):\n%s", diff)
	}
	if want := `posthaste queues resume default`; e.Reasons[0].Act.Command != want || e.Reasons[0].Act.Path != "/queues/default/resume" {
		t.Errorf("act: %+v", e.Reasons[0].Act)
	}
}

// The lowest priority that there is has its place among those that are blocked, too.
func TestExplainKnowsTheLowestPriority(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	p := &plight{T: t, db: db, o: o, of: outbox.RootTenant}
	p.worker("w1", "default", "mail", 0)
	p.run(p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k"}}))
	first, last := p.block(p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k"}})), p.block(p.enqueue(outbox.Options{Key: outbox.KeyRules{Name: "k"}}))
	p.exec(`UPDATE outbox.jobs SET priority = -32768 WHERE id = $1`, last)
	for id, ahead := range map[outbox.ID]int64{first: 0, last: 1} {
		e, err := o.Explain(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		full := slices.IndexFunc(e.Reasons, func(r operator.Reason) bool { return r.Code == operator.WhyKeyBusy })
		if full < 0 || int64(e.Reasons[full].Evidence.Ahead) != ahead {
			t.Errorf("reasons %s: %+v, want %d ahead", codes(e), e.Reasons, ahead)
		}
	}
}

// The rate of what has ended of late says about when a turn comes.
func TestATurnIsExpectedByWhatEnded(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	p := &plight{T: t, db: db, o: o, of: outbox.RootTenant}
	for range 40 {
		p.enqueue(outbox.Options{})
	}
	p.exec(`UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w1', started_at = now(), lease_expires_at = now() + interval '1 minute'`)
	p.exec(`SELECT outbox.close_jobs(array_agg(id), array_agg(epoch), array_agg('cancelled'::outbox.job_status)) FROM outbox.jobs`)
	p.exec(`UPDATE outbox.history SET finished_at = greatest(date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', now() - interval '20 s')`)
	p.exec(`INSERT INTO outbox.jobs (id, kind, payload) SELECT gen_random_uuid(), 'mail', '{}' FROM generate_series(1, 100)`)
	p.exec(`UPDATE outbox.jobs SET run_at = now() - interval '1 minute'`)
	p.worker("w1", "default", "mail", 0)
	e, err := o.Explain(t.Context(), p.enqueue(outbox.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	turn := e.Reasons[0]
	if wait := turn.Until.Sub(e.AsOf); turn.Code != operator.WhyTurn || turn.Ahead != 100 || turn.PerSecond < 1.5 || turn.PerSecond > 2.1 || wait < 45*time.Second || wait > 80*time.Second {
		t.Errorf("turn: %+v, in %s; want 100 before it, 2 a second", turn, turn.Until.Sub(e.AsOf))
	}
}

func TestReasonCodesAreAllAndInTheDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	all := operator.ReasonCodes()
	for _, code := range all {
		if !strings.Contains(string(page), "| `"+string(code)+"` |") {
			t.Errorf("docs/operate/operations.md does not list %s", code)
		}
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(all))); len(unique) != len(all) || len(all) != 25 {
		t.Errorf("%d codes, of which %d are different, want 25", len(all), len(unique))
	}
}
