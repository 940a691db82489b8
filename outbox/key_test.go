package outbox

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestRulesOfKeysThatAreNotAcceptableAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  Options
		field string
	}{
		"a limit below none":                 {Options{Key: KeyRules{Name: "k", MaxActive: -1}}, "Options.Key.MaxActive"},
		"a limit without end":                {Options{Key: KeyRules{Name: "k", MaxActive: 1001}}, "Options.Key.MaxActive"},
		"ordered, but several at once":       {Options{Key: KeyRules{Name: "k", MaxActive: 2, Ordered: true}}, "Options.Key.MaxActive"},
		"a sequence from zero":               {Options{Key: KeyRules{Name: "k", Ordered: true, Sequence: -1}}, "Options.Key.Sequence"},
		"a sequence of nothing":              {Options{Key: KeyRules{Name: "k", Sequence: 1}}, "Options.Key.Ordered"},
		"a policy for heads of no line":      {Options{Key: KeyRules{Name: "k", OnDeath: SkipDead}}, "Options.Key.Ordered"},
		"a policy for heads that is none":    {Options{Key: KeyRules{Name: "k", Ordered: true, OnDeath: "bury"}}, "Options.Key.OnDeath"},
		"a policy for leases that is none":   {Options{Key: KeyRules{Name: "k", OnLapse: "park"}}, "Options.Key.OnLapse"},
		"to be parked before it died":        {Options{Key: KeyRules{Name: "k", Ordered: true, OnDeath: ParkKey, ParkAfter: -1}}, "Options.Key.ParkAfter"},
		"to be parked later, but not at all": {Options{Key: KeyRules{Name: "k", Ordered: true, ParkAfter: time.Hour}}, "Options.Key.ParkAfter"},
		"rules without a key":                {Options{Key: KeyRules{MaxActive: 1}}, "Options.Key"},
		"ordered without a key":              {Options{Key: KeyRules{Ordered: true}}, "Options.Key"},
		"a depth below none":                 {Options{Key: KeyRules{Name: "k", MaxQueued: -1}}, "Options.Key.MaxQueued"},
		"a depth without end":                {Options{Key: KeyRules{Name: "k", MaxQueued: 100_001}}, "Options.Key.MaxQueued"},
		"a policy for no depth":              {Options{Key: KeyRules{Name: "k", WhenFull: CoalesceFull}}, "Options.Key.MaxQueued"},
		"a policy for depths that is none":   {Options{Key: KeyRules{Name: "k", MaxQueued: 1, WhenFull: "wait"}}, "Options.Key.WhenFull"},
		"two answers to a repeat":            {Options{Key: KeyRules{Name: "k", MaxQueued: 1}, IdempotencyKey: "i"}, "Options.IdempotencyKey"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Enqueue(t.Context(), untouched{t: t}, greet{"ada"}, c.opts)
			var fields []string
			for _, m := range mistakes(err) {
				fields = append(fields, m.Field)
			}
			if diff := cmp.Diff([]string{c.field}, fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s\n%v", diff, err)
			}
		})
	}
}

// How many may wait, in SQL: a full key stores nothing and says so by NULL, or by the
// id of the job that stands for the request.
func TestTheSQLFunctionKnowsTheDepthOfKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue := func(options string) *ID {
		t.Helper()
		return ask[*ID](t, db, `SELECT outbox.enqueue('greet', key => 'k', max_queued => 2`+options+`)`)
	}
	first, second := enqueue(``), enqueue(``)
	if got := enqueue(``); got != nil {
		t.Errorf("a full key took %s, want NULL", got)
	}
	if got := enqueue(`, when_full => 'coalesce'`); got == nil || *got != *second {
		t.Errorf("coalesced into %s, want the newest, %s", got, second)
	}
	if n := countJobs(t, db); n != 2 {
		t.Errorf("jobs = %d, want 2", n)
	}
	third := enqueue(`, when_full => 'replace-oldest', watched => true`)
	if got := ask[string](t, db, `SELECT status::text FROM outbox.history WHERE id = $1`, *first); got != "skipped" {
		t.Errorf("the oldest is %s, want skipped", got)
	}
	if !ask[bool](t, db, `SELECT watched FROM outbox.jobs WHERE id = $1`, *third) {
		t.Error("nobody waits for the new one")
	}
	for _, call := range []string{
		`max_queued => 1`, `key => 'k', max_queued => 0`, `key => 'k', max_queued => 100001`, `key => 'k', when_full => 'coalesce'`,
		`key => 'k', max_queued => 1, when_full => 'wait'`, `key => 'k', max_queued => 1, idempotency_key => 'i'`,
	} {
		if _, err := db.Exec(t.Context(), `SELECT outbox.enqueue('greet', `+call+`)`); err == nil {
			t.Errorf("%s is accepted", call)
		}
	}
	err := pgx.BeginTxFunc(t.Context(), db, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT outbox.enqueue('greet', key => 'k', max_queued => 2)`)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("in a serializable transaction: %v, want that it needs READ COMMITTED", err)
	}
}

// The SQL function stores what the options do, and a position as its transaction commits.
func TestTheSQLFunctionKnowsTheRulesOfKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		SELECT outbox.enqueue('a', key => 'k', max_active => 3, on_lapse => 'block'),
		       outbox.enqueue('b', key => 'k', ordered => true, on_death => 'park', park_after => '1 hour'),
		       outbox.enqueue('c', key => 'k', ordered => true, sequence => 7),
		       outbox.enqueue('d', key => 'k', max_active => 1)`)
	got := ask[string](t, db, `
		SELECT string_agg(concat_ws(' ', kind, max_active, ordered, line_position, on_death, park_after, on_lapse), '; ' ORDER BY kind) FROM outbox.jobs`)
	if want := "a 3 block; b t 1 park 01:00:00; c t 7; d"; got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
	for _, call := range []string{
		`max_active => 2`, `key => 'k', max_active => 0`, `key => 'k', ordered => true, max_active => 2`, `key => 'k', sequence => 1`,
		`key => 'k', ordered => true, sequence => 0`, `key => 'k', ordered => true, on_death => 'bury'`, `key => 'k', on_lapse => 'x'`,
		`key => 'k', ordered => true, park_after => '1 s'`, `ordered => true`,
	} {
		if _, err := db.Exec(t.Context(), `SELECT outbox.enqueue('a', `+call+`)`); err == nil {
			t.Errorf("%s is accepted", call)
		}
	}
}
