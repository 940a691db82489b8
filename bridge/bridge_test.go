package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

func order(n int) bridge.Message {
	return bridge.Message{ID: fmt.Sprint("order-", n), Source: "orders", Subject: "orders.new", Position: int64(n + 1), Body: fmt.Appendf(nil, `{"order": %d}`, n)}
}

func ordersUpTo(n int) (all []bridge.Message) {
	for i := range n {
		all = append(all, order(i))
	}
	return all
}

var tenant = outbox.ID{15: 7}

func TestAMessageIsAJob(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]outbox.Options{
		"of root":           {},
		"of another tenant": {Tenant: tenant, Queue: "in", Priority: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := newSource(
				bridge.Message{
					ID: "1", Source: "orders", Subject: "orders.eu", Key: "order-7", Position: 41, ContentType: "application/json; charset=utf-8",
					Headers: []bridge.Header{{"Traceparent", "00-1-2-01"}, {"x", "1"}, {"x", "2"}, {"bin", "\xff\x00"}}, Body: []byte(`{"a": 1}`),
				},
				bridge.Message{ID: "2", Source: "orders", Position: 42, Body: []byte("\x00\xff")},
				bridge.Message{ID: "3", Source: "orders", Key: "\x00\x01", Position: 3, ContentType: "application/json"},
				bridge.Message{ID: "4", Source: "orders", Key: strings.Repeat("k", 600), Position: 4, ContentType: "text/plain", Body: []byte("four")},
			)
			_, stop := start(t, db, bridge.BridgeConfig{Source: s, Options: options, Ordered: true})
			await(t, "four jobs", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 4 })
			stop()
			type job struct {
				Tenant, Queue, Kind, Type, Payload string
				Priority                           int
				Key                                *string
				Ordered                            *bool
				Position                           *int64
				Headers                            map[string]string
			}
			rows, err := db.Query(t.Context(), `SELECT tenant_id::text AS tenant, queue, kind, content_type AS type, encode(payload, 'escape') AS payload, priority, key, ordered, line_position - min(line_position) OVER () + 1 AS position, headers
				FROM outbox.jobs ORDER BY headers ->> 'inbox-id'`)
			if err != nil {
				t.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowToStructByName[job])
			if err != nil {
				t.Fatal(err)
			}
			line := int64(0)
			of := func(j job, id, subject string, position int64) job {
				j.Tenant, j.Queue, j.Kind, j.Priority = outbox.RootTenant.String(), "default", "order.received", options.Priority
				if options.Queue != "" {
					j.Tenant, j.Queue = tenant.String(), "in"
				}
				if j.Headers == nil {
					j.Headers = map[string]string{}
				}
				j.Headers["inbox-source"], j.Headers["inbox-id"], j.Headers["inbox-subject"], j.Headers["inbox-position"] = "orders", id, subject, fmt.Sprint(position)
				if j.Key != nil { // in the order of commits, though the stream begins anew in between
					line++
					j.Ordered, j.Position = new(true), new(line)
				}
				return j
			}
			want := []job{
				of(job{Type: "application/json", Payload: `{"a": 1}`, Key: new("order-7"), Headers: map[string]string{"traceparent": "00-1-2-01", "x": "1, 2", "bin;base64": "/wA="}}, "1", "orders.eu", 41),
				of(job{Type: "application/octet-stream", Payload: `\000\377`}, "2", "", 42),
				of(job{Type: "application/octet-stream", Key: new("base64:AAE=")}, "3", "", 3),
				of(job{Type: "text/plain", Payload: "four", Key: new("sha256:3a87a39ef69f2d6b4b6b8b9b8f7d2a4f")}, "4", "", 4),
			}
			if len(got) == 4 && got[3].Key != nil && strings.HasPrefix(*got[3].Key, "sha256:") && len(*got[3].Key) == 71 {
				want[3].Key = got[3].Key
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("jobs (-want +got):\n%s", diff)
			}
		})
	}
}

// What our own headers mean to us, such as that a job is a copy, another's message does not say of its job.
func TestAMessageSaysNothingInOurName(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]outbox.Options{"of root": {}, "of another tenant": {Tenant: tenant}} {
		for _, key := range []string{"", "k"} {
			t.Run(fmt.Sprintf("%s, key %q", name, key), func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				m := order(1)
				m.Key = key
				m.Headers = []bridge.Header{{"posthaste-replay", "1"}, {"Posthaste-Original-Id", "2"}, {"posthaste-bin", "\xff"}, {"bin", "\xff"}, {"bin", "\x00"}, {"Traceparent", "00-1-2-01"}, {"x-posthaste", "3"}, {"caller-service", "billing"}, {"Caller_Service", "billing"}}
				s := newSource(m)
				_, stop := start(t, db, bridge.BridgeConfig{Source: s, Options: options, Ordered: true})
				await(t, "a job", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 1 })
				stop()
				want := map[string]string{
					"inbox-posthaste-replay": "1", "inbox-Posthaste-Original-Id": "2", "inbox-posthaste-bin;base64": "/w==", "bin;base64": "/ywgAA==", "traceparent": "00-1-2-01", "x-posthaste": "3",
					"inbox-caller-service": "billing", "inbox-Caller_Service": "billing",
					"inbox-source": "orders", "inbox-id": "order-1", "inbox-subject": "orders.new", "inbox-position": "2",
				}
				if diff := cmp.Diff(want, ask[map[string]string](t, db, `SELECT headers FROM outbox.jobs`)); diff != "" {
					t.Errorf("headers (-want +got):\n%s", diff)
				}
				exec(t, db, `WITH gone AS (DELETE FROM outbox.jobs RETURNING *)
					INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, headers, key)
					SELECT id, tenant_id, run_at, created_at, 1, 'succeeded', 'running', 1, 25, 0, 0, queue, kind, payload, content_type, headers, key FROM gone`)
				counted, err := sqlgen.New(db).CountHistory(t.Context(), sqlgen.CountHistoryParams{
					Kind: "order.received", SealedPrefix: "sealed", Since: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
					Until: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
				})
				if err != nil || counted.Jobs != 1 {
					t.Errorf("a replay would store %d jobs again, %v, want 1", counted.Jobs, err)
				}
			})
		}
	}
}

// A message is acknowledged once its job is there, and one that comes again finds it.
func TestAMessageIsAcknowledgedAfterTheCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newSource(append(ordersUpTo(700), ordersUpTo(700)...)...)
	s.onAck = func() {
		s.mu.Lock()
		fetched := min(700, s.fetched)
		s.mu.Unlock()
		if n := jobs(t, db); n != fetched {
			t.Errorf("of %d messages that are acknowledged %d are jobs", fetched, n)
		}
	}
	start(t, db, bridge.BridgeConfig{Source: s})
	await(t, "all are acknowledged", 20*time.Second, func() bool { _, acked := s.counts(); return acked == 1400 })
	if n := jobs(t, db); n != 700 {
		t.Errorf("there are %d jobs, want 700", n)
	}
}

// What a broker is told to forget is on the disk, whatever the database is set to.
func TestAMessageIsAcknowledgedAfterTheDiskHasItsJob(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	exec(t, db, `CREATE TABLE public.commits (mode text)`)
	exec(t, db, `CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	exec(t, db, `CREATE TRIGGER note AFTER INSERT ON outbox.jobs FOR EACH STATEMENT EXECUTE FUNCTION public.note()`)
	db.Reset()
	s := newSource(ordersUpTo(10)...)
	start(t, db, bridge.BridgeConfig{Source: s})
	await(t, "all are acknowledged", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 10 })
	if modes := ask[string](t, db, `SELECT string_agg(DISTINCT mode, ', ') FROM public.commits`); modes != "on" {
		t.Errorf("the transactions had synchronous_commit = %s, want on", modes)
	}
}

// A process that has lost the bridge to another stores nothing and acknowledges nothing.
func TestAZombieIsFenced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newSource(ordersUpTo(10)...)
	taken := false
	s.onFetch = func() {
		if !taken { // by a process that holds its lease for minutes
			taken = true
			exec(t, db, `UPDATE outbox.inbox_positions SET epoch = epoch + 1, lease_expires_at = now() + interval '5 minutes'`)
		}
	}
	log, stop := start(t, db, bridge.BridgeConfig{Source: s})
	await(t, "it finds out", 10*time.Second, func() bool { return strings.Contains(log.String(), "another process fetches") })
	if _, acked := s.counts(); acked != 0 || jobs(t, db) != 0 {
		t.Errorf("it has acknowledged %d messages and stored %d jobs, want none", acked, jobs(t, db))
	}
	exec(t, db, `UPDATE outbox.inbox_positions SET lease_expires_at = now() - interval '1 s'`)
	await(t, "it takes the bridge over again", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 10 })
	stop()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.inbox_positions WHERE lease_expires_at IS NULL`); n != 1 {
		t.Error("a process that stops keeps the bridge until its lease lapses")
	}
}

// A failover to a server whose clock is behind leaves leases that end far in the future. Their owners may be gone.
func TestALeaseFromBeforeTheClockWasSetBackIsOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.inbox_positions (consumer, source, partition, position, epoch, lease_expires_at)
		VALUES ('-bridge', 'orders', 0, 0, 7, now() + interval '1 hour')`)
	if bridges, err := sqlgen.New(db).ListBridges(t.Context()); err != nil || len(bridges) != 1 || bridges[0].Fetching {
		t.Errorf("the bridges are %+v, %v, want one that nobody fetches for", bridges, err)
	}
	s := newSource(ordersUpTo(10)...)
	start(t, db, bridge.BridgeConfig{Source: s})
	await(t, "the bridge is taken over", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 10 })
}

func TestOneProcessFetches(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one, two := newSource(), newSource()
	_, stop := start(t, db, bridge.BridgeConfig{Source: one})
	await(t, "one fetches", 10*time.Second, func() bool { n, _ := one.counts(); return n > 0 })
	start(t, db, bridge.BridgeConfig{Source: two})
	time.Sleep(1500 * time.Millisecond)
	if n, _ := two.counts(); n != 0 {
		t.Error("two processes fetch")
	}
	stop()
	wantNoOwner(t, db)
	await(t, "the other one fetches", 10*time.Second, func() bool { n, _ := two.counts(); return n > 0 })
}

func TestAMessageThatCannotBeAJobIsADeadLetter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	large := order(1)
	large.Body = make([]byte, 5<<20)
	broken := order(2)
	broken.ContentType, broken.Body, broken.Key = "application/json", []byte(`{"order"`), "order-2"
	headers := order(3)
	headers.Headers = []bridge.Header{{"h", strings.Repeat("h", 70<<10)}}
	s := newSource(order(0), large, broken, headers, order(4), large, broken)
	_, stop := start(t, db, bridge.BridgeConfig{Source: s, Options: outbox.Options{Tenant: tenant, Queue: "in"}})
	await(t, "all are acknowledged", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 7 })
	stop()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'order.received' AND status = 'pending'`); n != 2 {
		t.Errorf("%d messages are jobs, want 2", n)
	}
	rows, err := db.Query(t.Context(), `SELECT kind, status::text, queue, tenant_id::text AS tenant, last_error_code AS code, last_error_message AS message, payload
		FROM outbox.jobs WHERE status = 'dead' AND failed_at IS NOT NULL AND error_fingerprint IS NOT NULL ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	type letter struct {
		Kind, Status, Queue, Tenant, Code, Message string
		Payload                                    []byte
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByName[letter])
	if err != nil || len(got) != 3 {
		t.Fatalf("%d dead letters, %v; want 3: %+v", len(got), err, got)
	}
	for i, want := range []struct {
		id, reason string
		size, kept int
	}{
		{"order-1", "are 5242880 bytes", 5 << 20, 2 << 20}, {"order-2", "is not valid JSON", 8, 8}, {"order-3", "bytes as JSON", len(headers.Body), len(headers.Body)},
	} {
		var l bridge.Letter
		if err := json.Unmarshal(got[i].Payload, &l); err != nil {
			t.Fatal(err)
		}
		if l.ID != want.id || l.Size != want.size || len(l.Body) != want.kept || l.ForKind != "order.received" || !strings.Contains(l.Reason, want.reason) ||
			!strings.Contains(got[i].Message, want.reason) || got[i].Kind != bridge.Undecodable || got[i].Status != "dead" || got[i].Queue != "in" ||
			got[i].Tenant != tenant.String() || got[i].Code != "undecodable_message" {
			l.Body = nil
			t.Errorf("letter %d: %s %s %s %s %s %q %+v", i, got[i].Kind, got[i].Status, got[i].Queue, got[i].Tenant, got[i].Code, got[i].Message, l)
		}
	}
}

// The rules of keys and the check of payloads apply to messages, not to what a configuration is tried with.
func TestRulesOfKeysLeaveOtherMessagesAlone(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]bridge.BridgeConfig{
		"parked":       {Ordered: true, Options: outbox.Options{Key: outbox.KeyRules{OnDeath: outbox.ParkKey}}},
		"two at once":  {Options: outbox.Options{Key: outbox.KeyRules{MaxActive: 2}}},
		"failed stale": {Options: outbox.Options{Key: outbox.KeyRules{OnLapse: outbox.FailStale}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			keyed := order(1)
			keyed.Key = "k"
			config.Source, config.Options.Check = newSource(order(0), keyed), onlyOrders{}
			_, stop := start(t, db, config)
			await(t, "both are acknowledged", 10*time.Second, func() bool {
				_, acked := config.Source.(*source).counts()
				return acked == 2
			})
			stop()
			if got := ask[string](t, db, `SELECT string_agg(kind || ' ' || coalesce(key, '-'), ', ' ORDER BY key)
				FROM outbox.jobs`); got != "order.received k, order.received -" {
				t.Errorf("jobs: %s", got)
			}
		})
	}
}

type onlyOrders struct{}

func (onlyOrders) Check(_ string, payload outbox.Content) error {
	if !strings.Contains(string(payload.Bytes), "order") {
		return errors.New("has no order")
	}
	return nil
}

// A message that the database refuses, and nobody else, holds up nothing either.
func TestAMessageThatTheDatabaseRefusesIsADeadLetter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one' USING ERRCODE = '22023'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.headers ->> 'inbox-id' = 'order-3') EXECUTE FUNCTION refuse()`)
	s := newSource(ordersUpTo(6)...)
	start(t, db, bridge.BridgeConfig{Source: s})
	await(t, "all are acknowledged", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 6 })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'dead' AND last_error_message LIKE '%not this one%'`); n != 1 || jobs(t, db) != 6 {
		t.Errorf("%d dead letters in %d jobs, want 1 in 6", n, jobs(t, db))
	}
}

// A batch that does not fit the time of a transaction is stored in parts, and meanwhile the bridge says why it waits.
func TestABatchThatIsTooMuchIsDivided(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE TABLE said (message text);
		CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO said VALUES (NEW.away_message); RETURN NULL; END $$;
		CREATE TRIGGER say AFTER UPDATE ON outbox.inbox_positions FOR EACH ROW WHEN (NEW.away_message IS NOT NULL) EXECUTE FUNCTION say();
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF (SELECT count(*) FROM stored) > 3 THEN RAISE 'too many' USING ERRCODE = '57014'; END IF; RETURN NULL; END $$;
		CREATE TRIGGER refuse AFTER INSERT ON outbox.jobs REFERENCING NEW TABLE AS stored FOR EACH STATEMENT EXECUTE FUNCTION refuse()`)
	all := ordersUpTo(10)
	for i := range all {
		all[i].Key = "k"
	}
	s := newSource(all...)
	start(t, db, bridge.BridgeConfig{Source: s, Ordered: true})
	await(t, "all are acknowledged", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 10 })
	if ids := ask[string](t, db, `SELECT string_agg(headers ->> 'inbox-id', ' ' ORDER BY line_position) FROM outbox.jobs`); ids != "order-0 order-1 order-2 order-3 order-4 order-5 order-6 order-7 order-8 order-9" {
		t.Errorf("jobs are %s, want all in their order", ids)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM said WHERE message LIKE 'jobs not stored%too many%'`); n == 0 {
		t.Error("the bridge does not say why it waits")
	}
}

// Nothing is wrong with messages for whose events there is no partition: they wait until there is one.
func TestMessagesWaitForAPartition(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `DO $$ DECLARE day regclass; BEGIN
		FOR day IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass LOOP EXECUTE 'DROP TABLE ' || day; END LOOP; END $$`)
	s := newSource(ordersUpTo(10)...)
	log, _ := start(t, db, bridge.BridgeConfig{Source: s, Options: outbox.Options{Streamed: true}})
	await(t, "it says that it stores nothing", 10*time.Second, func() bool { return strings.Contains(log.String(), "jobs not stored, messages wait") })
	if _, acked := s.counts(); acked > 0 || jobs(t, db) > 0 {
		t.Errorf("%d messages are acknowledged, and there are %d jobs, without a partition", acked, jobs(t, db))
	}
	exec(t, db, `SELECT outbox.ensure_days(2)`)
	await(t, "all are acknowledged", 20*time.Second, func() bool { _, acked := s.counts(); return acked == 10 })
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'order.received' AND status = 'pending'`); n != 10 {
		t.Errorf("%d messages are jobs, want 10", n)
	}
}

func TestAFullQueueStopsTheBridge(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"jobs without a key": "", "jobs of a key": "k"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			all := ordersUpTo(1000)
			for i := range all {
				all[i].Key = key
			}
			s := newSource(all...)
			log, _ := start(t, db, bridge.BridgeConfig{Source: s, MaxQueued: 600, Ordered: key != ""})
			await(t, "it waits", 10*time.Second, func() bool { return strings.Contains(log.String(), "bridge waits for its queue") })
			time.Sleep(2500 * time.Millisecond)
			if n := jobs(t, db); n != 600 {
				t.Errorf("there are %d jobs, want 600", n)
			}
			if lines := strings.Count(log.String(), "bridge waits for its queue"); lines != 1 {
				t.Errorf("%d lines in four seconds, want 1", lines)
			}
			exec(t, db, `DELETE FROM outbox.jobs WHERE id IN (SELECT id FROM outbox.jobs LIMIT 500)`)
			await(t, "it goes on", 10*time.Second, func() bool { return jobs(t, db) == 500 })
		})
	}
}

// While the database is away nothing is fetched, nothing acknowledged, and little logged. Then it all goes on.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy, url, err := fault.NewProxy(db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	through := connect(t, url)
	s := newSource(ordersUpTo(20)...)
	log, _ := start(t, through, bridge.BridgeConfig{Source: s})
	await(t, "it works", 10*time.Second, func() bool { _, acked := s.counts(); return acked == 20 })
	away, back := context.WithCancel(t.Context())
	defer back()
	go func() {
		for away.Err() == nil {
			proxy.CutAll()
			time.Sleep(time.Millisecond)
		}
	}()
	time.Sleep(200 * time.Millisecond)
	for n := range 30 {
		s.add(order(100 + n))
		time.Sleep(100 * time.Millisecond)
	}
	before, _ := s.counts()
	time.Sleep(2 * time.Second)
	after, acked := s.counts()
	if acked != 20 || after > before+1 {
		t.Errorf("it has fetched %d times in two seconds, and acknowledged %d messages, want 20", after-before, acked)
	}
	if lines := strings.Count(log.String(), "level=WARN"); lines > 3 {
		t.Errorf("%d lines in five seconds:\n%s", lines, log)
	}
	back()
	await(t, "it goes on", 20*time.Second, func() bool { _, acked := s.counts(); return acked == 50 })
	if n := jobs(t, db); n != 50 {
		t.Errorf("there are %d jobs, want 50", n)
	}
}

func TestWhatCannotBeConfigured(t *testing.T) {
	t.Parallel()
	good := bridge.BridgeConfig{Name: "b", Source: newSource(), Kind: "k"}
	with := func(change func(*bridge.BridgeConfig)) bridge.Config {
		c := good
		change(&c)
		return bridge.Config{Bridges: []bridge.BridgeConfig{c}}
	}
	for want, config := range map[string]bridge.Config{
		"Bridges is empty":          {},
		"name of 0 bytes":           with(func(c *bridge.BridgeConfig) { c.Name = "" }),
		"has no Source":             with(func(c *bridge.BridgeConfig) { c.Source = nil }),
		`two that are called "b"`:   {Bridges: []bridge.BridgeConfig{good, good}},
		"MaxQueued is -1":           with(func(c *bridge.BridgeConfig) { c.MaxQueued = -1 }),
		"is empty, want 1 to 128":   with(func(c *bridge.BridgeConfig) { c.Kind = "" }),
		"which are the message's":   with(func(c *bridge.BridgeConfig) { c.Options.IdempotencyKey = "x" }),
		"Options.Priority is 99999": with(func(c *bridge.BridgeConfig) { c.Options.Priority = 99999 }),
		"set BridgeConfig.Ordered":  with(func(c *bridge.BridgeConfig) { c.Options.Key.Ordered = true }),
		"Options.Key.Sequence":      with(func(c *bridge.BridgeConfig) { c.Options.Key.Sequence = 1 }),
	} {
		if _, err := bridge.New(nil, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
	}
}

// A third of the answers to COMMIT are lost: those batches are stored, and stored again.
func TestAnswersToCommitsAreLost(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy, url, err := fault.NewProxy(db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	var commits atomic.Int64
	proxy.AtCommit(func() fault.Cut {
		if commits.Add(1)%3 == 0 {
			return fault.After
		}
		return fault.Nowhere
	})
	s := newSource()
	_, stop := start(t, connect(t, url), bridge.BridgeConfig{Source: s})
	for n := range 200 {
		before := commits.Load()
		s.add(order(n))
		if n%20 == 19 {
			await(t, "a commit", 10*time.Second, func() bool { return commits.Load() > before })
		}
	}
	await(t, "all are acknowledged", 60*time.Second, func() bool { _, acked := s.counts(); return acked == 200 })
	stop()
	if n := jobs(t, db); n != 200 || commits.Load() < 3 {
		t.Errorf("there are %d jobs of 200 messages, after %d commits", n, commits.Load())
	}
}

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
