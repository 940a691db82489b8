package outbox

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestTheSQLFunctionStoresWhatEnqueueStores(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		call string
		want map[string]any
	}{
		"defaults":         {`outbox.enqueue('greet')`, map[string]any{"payload": "{}"}},
		"payload":          {`outbox.enqueue('greet', '{"b":[1,null],"a":"é"}')`, map[string]any{"payload": `{"a": "\303\251", "b": [1, null]}`}},
		"a JSON null":      {`outbox.enqueue('greet', 'null')`, map[string]any{"payload": "null"}},
		"queue":            {`outbox.enqueue('greet', queue => 'mail/eu:1.a_b-c')`, map[string]any{"payload": "{}", "queue": "mail/eu:1.a_b-c"}},
		"highest priority": {`outbox.enqueue('greet', priority => 32767)`, map[string]any{"payload": "{}", "priority": 32767.}},
		"lowest priority":  {`outbox.enqueue('greet', priority => -32768)`, map[string]any{"payload": "{}", "priority": -32768.}},
		"delay":            {`outbox.enqueue('greet', delay => '90 seconds')`, map[string]any{"payload": "{}", "due_in": "00:01:30"}},
		"longest delay":    {`outbox.enqueue('greet', delay => '36500 days')`, map[string]any{"payload": "{}", "due_in": "36500 days"}},
		"run_at":           {`outbox.enqueue('greet', run_at => statement_timestamp() + interval '1 hour')`, map[string]any{"payload": "{}", "due_in": "01:00:00"}},
		"max_attempts":     {`outbox.enqueue('greet', max_attempts => 3)`, map[string]any{"payload": "{}", "max_attempts": 3.}},
		"timeout":          {`outbox.enqueue('greet', timeout => '26:00:00.001')`, map[string]any{"payload": "{}", "timeout": "26:00:00.001"}},
		"backoff":          {`outbox.enqueue('greet', backoff => '{0,1.5 s,2:00}')`, map[string]any{"payload": "{}", "backoff": []any{"00:00:00", "00:00:01.5", "02:00:00"}}},
		"an empty backoff": {`outbox.enqueue('greet', backoff => '{}')`, map[string]any{"payload": "{}"}},
		"key":              {`outbox.enqueue('greet', key => 'order 7')`, map[string]any{"payload": "{}", "key": "order 7"}},
		"an empty key":     {`outbox.enqueue('greet', key => '', idempotency_key => '')`, map[string]any{"payload": "{}"}},
		"headers":          {`outbox.enqueue('greet', headers => '{"a": "b"}')`, map[string]any{"payload": "{}", "headers": map[string]any{"a": "b"}}},
		"no headers":       {`outbox.enqueue('greet', headers => '{}')`, map[string]any{"payload": "{}", "headers": map[string]any{}}},
		"deadline":         {`outbox.enqueue('greet', deadline => '2999-01-02T03:04:05Z')`, map[string]any{"payload": "{}", "deadline": "2999-01-02T03:04:05+00:00"}},
		"hold":             {`outbox.enqueue('greet', hold => true)`, map[string]any{"payload": "{}", "status": "created"}},
		"tenant_id":        {`outbox.enqueue('greet', tenant_id => '07000000-0000-0000-0000-000000000007')`, map[string]any{"payload": "{}", "tenant_id": tenant.String()}},
		"everything": {
			`outbox.enqueue(kind => 'greet', payload => '{"name": "ada"}', queue => 'q', priority => 1, delay => '1 minute', max_attempts => 2, timeout => '1 s',
			                key => 'k', idempotency_key => 'i', headers => '{"a": "b"}', tenant_id => '07000000-0000-0000-0000-000000000007', notify => false)`,
			map[string]any{
				"payload": `{"name": "ada"}`, "queue": "q", "priority": 1., "due_in": "00:01:00", "max_attempts": 2., "timeout": "00:00:01",
				"key": "k", "headers": map[string]any{"a": "b"}, "tenant_id": tenant.String(),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := ask[ID](t, db, `SELECT `+c.call)
			if diff := cmp.Diff(wantRow(c.want), stored(t, db, id)); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheSQLFunctionNamesEveryMistake(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const name = `must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit`
	for call, want := range map[string]string{
		`NULL`:                                 `kind NULL ` + name,
		`''`:                                   `kind '' ` + name,
		`'-a'`:                                 `kind '-a' ` + name,
		`E'a\n'`:                               "kind 'a\n' " + name,
		`'é'`:                                  `kind 'é' ` + name,
		`repeat('k', 129)`:                     `kind '` + strings.Repeat("k", 129) + `' ` + name,
		`'relay:s'`:                            `kind is 'relay:s': kinds that begin with relay: are those of messages that a sink has refused`,
		`'k', queue => 'relay:s'`:              `queue is 'relay:s': queues that begin with relay: are those of messages that a sink has refused`,
		`'k', queue => NULL`:                   `queue NULL ` + name,
		`'k', queue => 'a b'`:                  `queue 'a b' ` + name,
		`'k', NULL`:                            `payload is NULL; pass 'null'::jsonb for a JSON null`,
		`'k', to_jsonb(repeat('x', 1<<22))`:    `payload is 4194306 bytes, want at most 4194304; store large data elsewhere and enqueue a reference`,
		`'k', priority => 32768`:               `priority is 32768, want -32768 to 32767`,
		`'k', priority => NULL`:                `priority is NULL, want -32768 to 32767`,
		`'k', run_at => now(), delay => '1 s'`: `run_at and delay exclude each other`,
		`'k', deadline => 'infinity'`:          `deadline is infinity, want the year 1970 to 9999`,
		`'k', deadline => '2027-01-01Z', run_at => '2027-01-01Z'`: `deadline is not after run_at: the job could never start`,
		`'k', hold => NULL`:                                           `hold is NULL`,
		`'k', run_at => 'infinity'`:                                   `run_at is infinity, want the year 1970 to 9999`,
		`'k', run_at => '-infinity'`:                                  `run_at is -infinity, want the year 1970 to 9999`,
		`'k', delay => '-1 s'`:                                        `delay is -00:00:01, want 0 to 100 years`,
		`'k', delay => '102 years'`:                                   `delay is 102 years, want 0 to 100 years`,
		`'k', max_attempts => 0`:                                      `max_attempts is 0, want 1 to 32767`,
		`'k', max_attempts => NULL`:                                   `max_attempts is NULL, want 1 to 32767`,
		`'k', timeout => '-1 s'`:                                      `timeout is -00:00:01, want 0 to 100 years`,
		`'k', backoff => '{1 s,-1 s}'`:                                `backoff is {00:00:01,-00:00:01}, want at most 64 waits of 0 to 100 years`,
		`'k', backoff => '{102 years}'`:                               `backoff is {"102 years"}, want at most 64 waits of 0 to 100 years`,
		`'k', backoff => '{1 s,NULL}'`:                                `backoff is {00:00:01,NULL}, want at most 64 waits of 0 to 100 years`,
		`'k', backoff => '{{1 s},{1 s}}'`:                             `backoff is {{00:00:01},{00:00:01}}, want at most 64 waits of 0 to 100 years`,
		`'k', backoff => array_fill(interval '0', '{65}')`:            `backoff is {` + strings.Repeat("00:00:00,", 64) + `00:00:00}, want at most 64 waits of 0 to 100 years`,
		`'k', key => repeat('k', 513)`:                                `key is 513 bytes long, want at most 512`,
		`'k', idempotency_key => repeat('k', 513)`:                    `idempotency_key is 513 bytes long, want at most 512`,
		`'k', headers => '[]'`:                                        `headers must be a JSON object of strings`,
		`'k', headers => 'null'`:                                      `headers must be a JSON object of strings`,
		`'k', headers => '{"": "b"}'`:                                 `headers have one whose name is empty`,
		`'k', headers => '{"a": 1}'`:                                  `headers must be a JSON object of strings`,
		`'k', headers => '{"a": "b", "c": ["d"]}'`:                    `headers must be a JSON object of strings`,
		`'k', headers => jsonb_build_object('a', repeat('b', 65536))`: `headers are 65545 bytes as JSON, want at most 65536`,
		`'k', tenant_id => NULL`:                                      `tenant_id is NULL`,
		`NULL, queue => '', priority => 40000, tenant_id => NULL`:     `kind NULL ` + name + `; queue '' ` + name + `; priority is 40000, want -32768 to 32767; tenant_id is NULL`,
	} {
		_, err := db.Exec(t.Context(), `SELECT outbox.enqueue(`+call+`)`)
		got, isPg := err.(*pgconn.PgError)
		if !isPg || got.Code != "22023" {
			t.Errorf("enqueue(%s): %v, want SQLSTATE 22023", call, err)
			continue
		}
		if diff := cmp.Diff("outbox.enqueue: "+want, got.Message); diff != "" {
			t.Errorf("enqueue(%s) (-want +got):\n%s", call, diff)
		}
	}
	if got := countJobs(t, db); got != 0 {
		t.Errorf("got %d jobs, want none", got)
	}
}

func TestTheSQLFunctionAndGoShareTheRuleForNames(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// The last two fold to k and s.
	names := []string{"", strings.Repeat("a", 128), strings.Repeat("a", 129), "aé", "a\u212a", "a\u017f"}
	for c := byte(1); c < 128; c++ {
		names = append(names, string(rune(c)), "a"+string(rune(c)))
	}
	for _, name := range names {
		_, err := db.Exec(t.Context(), `SELECT outbox.enqueue($1, queue => $1)`, name)
		if ours := validName("kind", name); (err == nil) != (ours == nil) {
			t.Errorf("%q: the function says %v, Go %v", name, err, ours)
		}
	}
}

func TestNoJobIsDueNeverOrEver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, at := range []string{"infinity", "-infinity", "10000-01-01 00:00:00+00", "0001-12-31 23:59:59+00 BC"} {
		_, err := db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, kind, payload, run_at) VALUES (gen_random_uuid(), 'k', '1', $1::timestamptz)`, at)
		if sqlState(err) != "23514" {
			t.Errorf("run_at = %s: %v, want a check violation", at, err)
		}
	}
}

func TestTheSQLFunctionRepeatsTheFirstJob(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const call = `SELECT outbox.enqueue('greet', to_jsonb($1::text), idempotency_key => 'k')`
	first := ask[ID](t, db, call, "first")
	if got := ask[ID](t, db, call, "second"); got != first {
		t.Errorf("got %s, want %s", got, first)
	}
	if got, err := Enqueue(t.Context(), db, greet{"third"}, Options{IdempotencyKey: "k"}); err != nil || got != first {
		t.Errorf("Go got %s, %v; want %s: the keys are the same", got, err, first)
	}
	if got := payloads(t, db, []ID{first}); countJobs(t, db) != 1 || got[0] != `"first"` {
		t.Errorf("got %d jobs, %s; want the first unchanged", countJobs(t, db), got)
	}
	for _, other := range []string{`'greet.two', idempotency_key => 'k'`, `'greet', idempotency_key => 'K'`, `'greet', idempotency_key => 'k', tenant_id => gen_random_uuid()`} {
		if got := ask[ID](t, db, `SELECT outbox.enqueue(`+other+`)`); got == first {
			t.Errorf("enqueue(%s) is the first job", other)
		}
	}
}

func TestConcurrentSQLCallersMakeOneJob(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pgx.Tx, context.Context) error{
		"when the first commits": pgx.Tx.Commit, "when the first rolls back": pgx.Tx.Rollback,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const call = `SELECT outbox.enqueue('greet', idempotency_key => 'k')`
			db := pgtest.New(t)
			tx := begin(t, db, pgx.ReadCommitted)
			first := ask[ID](t, tx, call)
			ids := make([]ID, 10)
			pool := poolOf(t, db, int32(len(ids)))
			var callers sync.WaitGroup
			for i := range ids {
				callers.Go(func() {
					if err := pool.QueryRow(t.Context(), call).Scan(&ids[i]); err != nil {
						t.Error(err)
					}
				})
			}
			pgtest.AwaitLocks(t, db, len(ids))
			if err := end(tx, t.Context()); err != nil {
				t.Fatal(err)
			}
			callers.Wait()
			job := ask[ID](t, db, `SELECT id FROM outbox.jobs`)
			if want := slices.Repeat([]ID{job}, len(ids)); !slices.Equal(ids, want) {
				t.Errorf("got %s, want only %s", ids, job)
			}
			if committed := name == "when the first commits"; (job == first) != committed {
				t.Errorf("the job is %s, the first was %s", job, first)
			}
		})
	}
}

func TestTheSQLFunctionNotifiesUnlessAskedNotTo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ear := listen(t, db)
	for call, want := range map[string]int{`outbox.enqueue('k')`: 1, `outbox.enqueue('k', notify => false)`: 0, `outbox.enqueue('k') FROM generate_series(1, 100)`: 1} {
		exec(t, db, `SELECT `+call)
		if got := ear.heard(); got != want {
			t.Errorf("%s: %d notifications, want %d", call, got, want)
		}
	}
}

func TestIDsOfTheSQLFunctionAreOfVersion7(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Query(t.Context(), `
		SELECT clock_timestamp() AS before, outbox.enqueue('k', notify => false) AS id, clock_timestamp() AS after
		FROM generate_series(1, 500)`)
	if err != nil {
		t.Fatal(err)
	}
	type made struct {
		Before time.Time
		ID     ID
		After  time.Time
	}
	jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[made])
	if err != nil {
		t.Fatal(err)
	}
	seen := map[ID]bool{}
	for _, j := range jobs {
		seen[j.ID] = true
		if version, variant := j.ID[6]>>4, j.ID[8]>>6; version != 7 || variant != 0b10 {
			t.Fatalf("%s is of version %d, variant %b", j.ID, version, variant)
		}
		if ms := milliseconds(j.ID); ms < j.Before.UnixMilli() || ms > j.After.UnixMilli() {
			t.Fatalf("%s says %d ms, made between %d and %d", j.ID, ms, j.Before.UnixMilli(), j.After.UnixMilli())
		}
	}
	if len(seen) != 500 {
		t.Errorf("%d different ids, want 500", len(seen))
	}
}

func TestATriggerCanBeAProducer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		CREATE TABLE orders (id int PRIMARY KEY, kind text, queue text, key text, payload text); -- named like the parameters
		CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		    PERFORM outbox.enqueue('receipt.send', jsonb_build_object('order_id', NEW.id), queue => 'mail', idempotency_key => NEW.id::text);
		    RETURN NULL;
		END $$;
		CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed()`)
	ear := listen(t, db)
	for name, c := range map[string]struct {
		end  func(pgx.Tx, context.Context) error
		want []string
	}{
		"rollback": {pgx.Tx.Rollback, nil},
		"commit":   {pgx.Tx.Commit, []string{`mail {"order_id": 1}`, `mail {"order_id": 2}`}},
	} {
		tx := begin(t, db, pgx.ReadCommitted)
		exec(t, tx, `SET LOCAL search_path = ''; INSERT INTO public.orders VALUES (1), (2)`)
		if err := c.end(tx, t.Context()); err != nil {
			t.Fatal(err)
		}
		got := ask[[]string](t, db, `SELECT array_agg(queue || ' ' || convert_from(payload, 'UTF8') ORDER BY payload) FROM outbox.jobs WHERE kind = 'receipt.send'`)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("jobs after a %s (-want +got):\n%s", name, diff)
		}
		if got, want := ear.heard(), min(len(c.want), 1); got != want {
			t.Errorf("%d notifications after a %s, want %d", got, name, want)
		}
		exec(t, db, `TRUNCATE orders, outbox.jobs, outbox.idempotency_keys`)
	}
}
