package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

type paid struct {
	Order int `json:"order"`
}

func (paid) Topic() string { return "order.paid" }

// storedEvent returns an event's row without what differs from run to run.
func storedEvent(t *testing.T, db DB, id ID) map[string]any {
	t.Helper()
	text := ask[[]byte](t, db, `
		SELECT to_jsonb(e) - '{id, position, at}'::text[] || jsonb_build_object('payload', encode(payload, 'escape'))
		FROM outbox.events AS e
		WHERE id = $1 AND at BETWEEN now() - interval '1 minute' AND clock_timestamp()`, id)
	var row map[string]any
	if err := json.Unmarshal(text, &row); err != nil {
		t.Fatal(err)
	}
	return row
}

// wantEvent returns what storedEvent returns for paid{7} without options, and what differs.
func wantEvent(differences map[string]any) map[string]any {
	row := map[string]any{
		"tenant_id": "00000000-0000-0000-0000-000000000001", "topic": "order.paid", "key": nil, "content_type": "application/json",
		"payload": `{"order":7}`, "headers": nil,
	}
	maps.Copy(row, differences)
	return row
}

// log is the ids of all events in the order of their positions.
func eventLog(t *testing.T, db DB) []ID {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT id FROM outbox.events ORDER BY position`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[ID])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestPublishStoresWhatItIsGiven(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	handle := stdlib.OpenDBFromPool(db)
	t.Cleanup(func() { _ = handle.Close() })
	own := NewID()
	for name, c := range map[string]struct {
		event Event
		opts  EventOptions
		want  map[string]any
	}{
		"defaults": {paid{7}, EventOptions{}, nil},
		"everything": {
			paid{7},
			EventOptions{Key: "order 7", Headers: map[string]string{"a": "é"}, Tenant: tenant, ID: own, Serial: true},
			map[string]any{"key": "order 7", "headers": map[string]any{"a": "é"}, "tenant_id": tenant.String()},
		},
		"bytes": {Raw{"order.paid", []byte{0, 1}, "application/protobuf"}, EventOptions{}, map[string]any{"payload": `\000\x01`, "content_type": "application/protobuf"}},
		"none":  {&Raw{"order.paid", nil, "text/plain"}, EventOptions{}, map[string]any{"payload": ``, "content_type": "text/plain"}},
		"sealed": {paid{7}, EventOptions{Protect: backwards{}, Tenant: tenant}, map[string]any{
			"payload": `}7:"redro"{`, "content_type": "sealed of payload", "tenant_id": tenant.String(),
		}},
	} {
		want := wantEvent(c.want)
		if name == "bytes" {
			want["payload"] = "\\000\x01"
		}
		for way, db := range map[string]DB{"pgx": db, "database/sql": FromSQL(handle)} {
			id, err := Publish(t.Context(), db, c.event, c.opts)
			if err != nil || !c.opts.ID.IsZero() && id != c.opts.ID {
				t.Fatalf("%s by %s: %s, %v", name, way, id, err)
			}
			if diff := cmp.Diff(want, storedEvent(t, db, id)); diff != "" {
				t.Errorf("%s by %s (-want +got):\n%s", name, way, diff)
			}
			exec(t, db, `DELETE FROM outbox.events`)
			ids, err := PublishMany(t.Context(), db, []PublishRequest{{c.event, c.opts}})
			if err != nil || len(ids) != 1 {
				t.Fatalf("many of %s by %s: %v", name, way, err)
			}
			if diff := cmp.Diff(want, storedEvent(t, db, ids[0])); diff != "" {
				t.Errorf("many of %s by %s (-want +got):\n%s", name, way, diff)
			}
			exec(t, db, `DELETE FROM outbox.events`)
		}
	}
}

// backwards seals by turning bytes round.
type backwards struct{}

func (backwards) Seal(_ context.Context, of Part, plain Content) (Content, error) {
	if of.Tenant != tenant || of.Job.IsZero() {
		return Content{}, fmt.Errorf("part of %v", of)
	}
	sealed := slices.Clone(plain.Bytes)
	slices.Reverse(sealed)
	return Content{"sealed of " + of.Column, sealed}, nil
}

func (backwards) Open(context.Context, Part, Content) (Content, error) { panic("not called") }

// refuser is a Checker that refuses.
type refuser struct{}

func (refuser) Check(kind string, payload Content) error {
	return invalid("Args/order", "of %s is %s", kind, payload.Bytes)
}

type notANumber struct{ F float64 }

func (notANumber) Topic() string { return "nan" }

func TestPublishNamesEveryMistake(t *testing.T) {
	t.Parallel()
	db := untouched{t: t}
	const name = "want ASCII letters, digits and _ . : / -, first a letter or digit"
	for want, c := range map[string]PublishRequest{
		`Event is nil`: {},
		`Event.Topic() is empty, want 1 to 128 characters`:                                                 {Raw{Payload: []byte("1")}, EventOptions{}},
		`Event.Topic() is 129 bytes long, want at most 128`:                                                {Raw{KindName: strings.Repeat("t", 129), Payload: []byte("1")}, EventOptions{}},
		`Event.Topic() is "a b": byte 1 is " ", ` + name:                                                   {Raw{KindName: "a b", Payload: []byte("1")}, EventOptions{}},
		`Event cannot be encoded as JSON: json: unsupported value: NaN`:                                    {notANumber{math.NaN()}, EventOptions{}},
		`Raw.Payload is not valid JSON: unexpected end of JSON input`:                                      {Raw{KindName: "t"}, EventOptions{}},
		`Raw.ContentType is 129 bytes long, want at most 128`:                                              {Raw{"t", nil, strings.Repeat("c", 129)}, EventOptions{}},
		`Event is 4194305 bytes, want at most 4194304; store large data elsewhere and publish a reference`: {Raw{"t", make([]byte, 4<<20+1), "x/y"}, EventOptions{}},
		`EventOptions.Key is 513 bytes long, want at most 512`:                                             {paid{}, EventOptions{Key: strings.Repeat("k", 513)}},
		`EventOptions.Key has a NUL at byte 1, which Postgres text cannot hold`:                            {paid{}, EventOptions{Key: "a\x00"}},
		`EventOptions.Headers[a] is not valid UTF-8`:                                                       {paid{}, EventOptions{Headers: map[string]string{"a": "\xff"}}},
		`EventOptions.Headers name is empty`:                                                               {paid{}, EventOptions{Headers: map[string]string{"": "x"}}},
		`EventOptions.Headers name is not valid UTF-8`:                                                     {paid{}, EventOptions{Headers: map[string]string{"\xff": ""}}},
		`EventOptions.Headers are 65544 bytes as JSON, want at most 65536`:                                 {paid{}, EventOptions{Headers: map[string]string{"a": strings.Repeat("b", 65536)}}},
		`EventOptions.Serial is set, but EventOptions.Key is empty`:                                        {paid{}, EventOptions{Serial: true}},
		`Args/order of order.paid is {"order":7}`:                                                          {paid{7}, EventOptions{Check: refuser{}}},
		`EventOptions.Serial is set, but EventOptions.Key is empty; Event.Topic() is empty, want 1 to 128 characters; Raw.Payload is not valid JSON: unexpected end of JSON input`: {Raw{}, EventOptions{Serial: true}},
	} {
		_, err := Publish(t.Context(), db, c.Event, c.Options)
		var got []string
		for _, m := range mistakes(err) {
			got = append(got, m.Error())
		}
		if diff := cmp.Diff(want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		_, err = PublishMany(t.Context(), db, []PublishRequest{{Event: paid{1}}, c})
		if bad, ok := errors.AsType[*RequestError](err); !ok || bad.Index != 1 || len(mistakes(bad.Err)) != len(got) {
			t.Errorf("many: %v, want request 1: %s", err, want)
		}
	}
}

func TestPublishInSQLStoresWhatPublishStores(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for call, want := range map[string]map[string]any{
		`'order.paid', '{"order":7}'`: {"payload": `{"order": 7}`},
		`'order.paid', '1', ''`:       {"payload": `1`},
		`'order.paid', '1', content_type => 'application/cloudevents+json'`: {"payload": `1`, "content_type": "application/cloudevents+json"},
		`topic => 'order.paid', payload => 'null', key => 'k', headers => '{"a": "b"}', tenant_id => '07000000-0000-0000-0000-000000000007',
			id => gen_random_uuid(), serial => true, notify => false`: {"payload": `null`, "key": "k", "headers": map[string]any{"a": "b"}, "tenant_id": tenant.String()},
	} {
		id := ask[ID](t, db, `SELECT outbox.publish(`+call+`)`)
		if diff := cmp.Diff(wantEvent(want), storedEvent(t, db, id)); diff != "" {
			t.Errorf("publish(%s) (-want +got):\n%s", call, diff)
		}
	}
	if id := NewID(); ask[ID](t, db, `SELECT outbox.publish('t', '1', id => $1)`, id) != id {
		t.Error("it returns another id than the one that it was given")
	}
}

func TestPublishInSQLNamesEveryMistake(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const name = `must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit`
	for call, want := range map[string]string{
		`NULL, '1'`:                         `topic NULL ` + name,
		`'', '1'`:                           `topic '' ` + name,
		`'a b', '1'`:                        `topic 'a b' ` + name,
		`'t', NULL`:                         `payload is NULL; pass 'null'::jsonb for a JSON null`,
		`'t', to_jsonb(repeat('x', 1<<22))`: `payload is 4194306 bytes, want at most 4194304; store large data elsewhere and publish a reference`,
		`'t', '1', repeat('k', 513)`:        `key is 513 bytes long, want at most 512`,
		`'t', '1', headers => '[]'`:         `headers must be a JSON object of strings`,
		`'t', '1', headers => '{"a": 1}'`:   `headers must be a JSON object of strings`,
		`'t', '1', headers => jsonb_build_object('a', repeat('b', 65536))`: `headers are 65545 bytes as JSON, want at most 65536`,
		`'t', '1', content_type => ''`:                                     `content_type is 0 bytes long, want 1 to 128`,
		`'t', '1', content_type => NULL`:                                   `content_type is NULL bytes long, want 1 to 128`,
		`'t', '1', content_type => repeat('c', 129)`:                       `content_type is 129 bytes long, want 1 to 128`,
		`'t', '1', tenant_id => NULL`:                                      `tenant_id is NULL`,
		`'t', '1', serial => true`:                                         `serial is set, but key is not`,
		`'', NULL, tenant_id => NULL`:                                      `topic '' ` + name + `; payload is NULL; pass 'null'::jsonb for a JSON null; tenant_id is NULL`,
	} {
		_, err := db.Exec(t.Context(), `SELECT outbox.publish(`+call+`)`)
		got, isPg := err.(*pgconn.PgError)
		if !isPg || got.Code != "22023" {
			t.Errorf("publish(%s): %v, want SQLSTATE 22023", call, err)
			continue
		}
		if diff := cmp.Diff("outbox.publish: "+want, got.Message); diff != "" {
			t.Errorf("publish(%s) (-want +got):\n%s", call, diff)
		}
	}
	if got := eventLog(t, db); len(got) > 0 {
		t.Errorf("stored %v, want nothing", got)
	}
}

// waysToPublish are one and many, by INSERT and by COPY, and SQL.
var waysToPublish = map[string]func(context.Context, DB) error{
	"Publish": func(ctx context.Context, db DB) error {
		_, err := Publish(ctx, db, paid{7}, EventOptions{})
		return err
	},
	"Publish with Serial": func(ctx context.Context, db DB) error {
		_, err := Publish(ctx, db, paid{7}, EventOptions{Key: "k", Serial: true})
		return err
	},
	"PublishMany": func(ctx context.Context, db DB) error {
		_, err := PublishMany(ctx, db, payments(3, EventOptions{}))
		return err
	},
	"PublishMany by COPY": func(ctx context.Context, db DB) error {
		_, err := PublishMany(ctx, db, payments(copyFrom, EventOptions{}))
		return err
	},
}

func payments(n int, opts EventOptions) (requests []PublishRequest) {
	for i := range n {
		requests = append(requests, PublishRequest{paid{i}, opts})
	}
	return requests
}

func TestAnEventExistsExactlyWhenItsTransactionCommits(t *testing.T) {
	t.Parallel()
	for way, publish := range waysToPublish {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			for begins, by := range map[string]Beginner{"pool": db, "producer": NewProducer(db, NotifyCoalesced)} {
				for _, commits := range []bool{false, true} {
					before := len(eventLog(t, db))
					tx, err := by.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if err := publish(t.Context(), tx); err != nil {
						t.Fatal(err)
					}
					if n := len(eventLog(t, db)); n != before {
						t.Errorf("%s: %d events are there before the commit, want %d", begins, n, before)
					}
					end := tx.Rollback
					if commits {
						end = tx.Commit
					}
					if err := end(t.Context()); err != nil {
						t.Fatal(err)
					}
					if n := len(eventLog(t, db)); (n > before) != commits {
						t.Errorf("%s, committed %t: %d events, there were %d", begins, commits, n, before)
					}
				}
			}
		})
	}
}

// What is rolled back to a savepoint is not published, and what is before and after it is.
func TestASavepointTakesItsEventsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for begins, by := range map[string]Beginner{"pool": db, "producer": NewProducer(db, NotifyOff)} {
		exec(t, db, `DELETE FROM outbox.events`)
		tx, err := by.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want []ID
		publish := func(db DB, stays bool) {
			t.Helper()
			id, err := Publish(t.Context(), db, paid{1}, EventOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if stays {
				want = append(want, id)
			}
		}
		publish(tx, true)
		inner, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		publish(inner, false)
		publish(tx, false) // within the savepoint, too
		if err := inner.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		publish(tx, true)
		if _, err := PublishMany(t.Context(), tx, []PublishRequest{{Event: paid{1}, Options: EventOptions{ID: NewID()}}, {}}); err == nil {
			t.Error("a request without an event has no error")
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, eventLog(t, db)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", begins, diff)
		}
	}
}

func TestPositionsAreInTheOrderOfPublishing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	producer := NewProducer(db, NotifyOff)
	var want []ID
	for _, by := range []Beginner{db, producer} {
		err := pgx.BeginFunc(t.Context(), by, func(tx pgx.Tx) error {
			for i, many := range []int{0, 3, copyFrom, 1, chunkSize + 2, 0, 2} {
				if many == 0 {
					id, err := Publish(t.Context(), tx, paid{i}, EventOptions{Key: "k"})
					if err != nil {
						return err
					}
					want = append(want, id)
				}
				ids, err := PublishMany(t.Context(), tx, payments(many, EventOptions{Key: "k", Serial: many == 3}))
				if err != nil {
					return err
				}
				want = append(want, ids...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	role := asTenant(t, db) // by INSERT throughout
	ids, err := PublishMany(t.Context(), role, payments(2*chunkSize+1, EventOptions{Tenant: tenant}))
	if err != nil {
		t.Fatal(err)
	}
	if got := eventLog(t, db); !slices.Equal(append(want, ids...), got) {
		t.Error("the log is in another order than the calls")
	}
}

// asTenant returns a connection as a producer of the tenant, who must not COPY.
func asTenant(t *testing.T, db *pgxpool.Pool) *pgxpool.Conn {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Conn().Close(context.Background())
		conn.Release()
	})
	exec(t, conn, `SET ROLE outbox_producer`)
	exec(t, conn, `SELECT set_config('app.tenant_id', $1, false)`, tenant.String())
	return conn
}

// One by one, by arrays and by COPY, the same rows.
func TestManyEventsAreStoredLikeOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	kinds := []PublishRequest{
		{paid{1}, EventOptions{}},
		{Raw{"raw", []byte("\x00\xff"), "application/octet-stream"}, EventOptions{Tenant: tenant}},
		{paid{2}, EventOptions{Key: `k"{,}\`, Headers: map[string]string{"a": `"\u0000`, "e": "é"}}},
		{Raw{"none", nil, "text/plain"}, EventOptions{Key: "k", Tenant: tenant, Headers: map[string]string{"b": "c"}}},
	}
	for name, n := range map[string]int{"arrays": 100, "COPY": copyFrom} {
		var requests []PublishRequest
		for i := range n {
			requests = append(requests, kinds[i%len(kinds)])
		}
		ids, err := PublishMany(t.Context(), db, requests)
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range kinds {
			one, err := Publish(t.Context(), db, k.Event, k.Options)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(storedEvent(t, db, one), storedEvent(t, db, ids[n-len(kinds)+i])); diff != "" {
				t.Errorf("%s, request %d (-one +many):\n%s", name, i, diff)
			}
		}
	}
	// Where all leave a column to its default it is not sent.
	ids, err := PublishMany(t.Context(), db, payments(8, EventOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantEvent(nil), storedEvent(t, db, ids[7])); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

// A commit wakes those whom it concerns, with one statement for many commits.
func TestACommitWakesWhomItConcerns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Conn().Close(context.Background())
		conn.Release()
	})
	exec(t, conn, `LISTEN `+engine.Channel+`; LISTEN `+engine.EventsChannel+`; LISTEN enough`)
	heard := func() (channels []string) {
		exec(t, db, `NOTIFY enough`)
		for {
			n, err := conn.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.Channel == "enough" {
				slices.Sort(channels)
				return slices.Compact(channels)
			}
			if n.Payload != "" {
				t.Errorf("a notification carries %q, want nothing", n.Payload)
			}
			channels = append(channels, n.Channel)
		}
	}
	jobs, events := []string{engine.Channel}, []string{engine.EventsChannel}
	none, both := []string(nil), []string{engine.EventsChannel, engine.Channel}
	for mode, wants := range map[NotifyMode]bool{NotifyCoalesced: true, NotifyTransactional: true, NotifyOff: false} {
		p := NewProducer(db, mode)
		for way, publish := range waysToPublish {
			for _, enqueues := range []bool{false, true} {
				want := events
				if enqueues {
					want = both
				}
				if !wants {
					want = none
				}
				err := p.InTx(t.Context(), func(tx pgx.Tx) error {
					if enqueues {
						if _, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{}); err != nil {
							return err
						}
					}
					return publish(t.Context(), tx)
				})
				if err != nil {
					t.Fatal(err)
				}
				flush(t, p)
				if diff := cmp.Diff(want, slices.Sorted(slices.Values(heard()))); diff != "" {
					t.Errorf("%s, %s, with a job %t (-want +got):\n%s", mode, way, enqueues, diff)
				}
			}
		}
		if err := p.InTx(t.Context(), func(tx pgx.Tx) error { _, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{}); return err }); err != nil {
			t.Fatal(err)
		}
		flush(t, p)
		want := jobs
		if !wants {
			want = none
		}
		if diff := cmp.Diff(want, heard()); diff != "" {
			t.Errorf("%s, a job alone (-want +got):\n%s", mode, diff)
		}
		// What the producer does not see commit.
		if _, err := p.Publish(t.Context(), db, paid{1}, EventOptions{}); err != nil {
			t.Fatal(err)
		}
		want = events
		if !wants {
			want = none
		}
		if diff := cmp.Diff(want, heard()); diff != "" {
			t.Errorf("%s, by the pool (-want +got):\n%s", mode, diff)
		}
	}
	exec(t, db, `SELECT outbox.publish('t', '1', notify => false)`)
	if got := heard(); len(got) > 0 {
		t.Errorf("notify => false notified %v", got)
	}
	exec(t, db, `SELECT outbox.publish('t', '1')`)
	if diff := cmp.Diff(events, heard()); diff != "" {
		t.Errorf("SQL (-want +got):\n%s", diff)
	}
}

// A wake-up that could not be sent is sent again with those that came meanwhile.
func TestAWakeUpThatFailsIsSentAgainToItsChannels(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	fails := 1
	r.send = func(context.Context) error {
		if fails > 0 {
			fails--
			r.wake(jobsChannel)
			return errors.New("no connection")
		}
		return nil
	}
	r.wake(eventsChannel)
	if err := r.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]channels{eventsChannel, eventsChannel | jobsChannel}, r.woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

// A holds the lock of a key; B, by whatever way, waits with its position until A has ended:
//
//	A  publish, at position 1            commit
//	B              publish: waits               position 2, commit
func TestSerialEventsOfAKeyWaitForOneAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const other = `07000000-0000-0000-0000-000000000007`
	opts := EventOptions{Key: "k", Serial: true, Tenant: tenant}
	ways := map[string]func(context.Context, DB) error{
		"Publish": func(ctx context.Context, db DB) error { _, err := Publish(ctx, db, paid{1}, opts); return err },
		"PublishMany": func(ctx context.Context, db DB) error {
			_, err := PublishMany(ctx, db, append(payments(1, EventOptions{}), payments(2, opts)...))
			return err
		},
		"COPY": func(ctx context.Context, db DB) error {
			_, err := PublishMany(ctx, db, payments(copyFrom, opts))
			return err
		},
		"SQL": func(ctx context.Context, db DB) error {
			_, err := db.Exec(ctx, `SELECT outbox.publish('t', '1', 'k', serial => true, tenant_id => $1)`, other)
			return err
		},
	}
	for first, holds := range ways {
		for second, waits := range ways {
			tx := begin(t, db, pgx.ReadCommitted)
			if err := holds(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			held := ask[int64](t, tx, `SELECT max(position) FROM outbox.events WHERE tenant_id = $1`, tenant)
			done := make(chan error, 1)
			go func() { done <- waits(t.Context(), db) }()
			pgtest.AwaitLocks(t, db, 1)
			// Other keys and tenants, and events without Serial, do not wait.
			for _, free := range []EventOptions{{Key: "l", Serial: true, Tenant: tenant}, {Key: "k", Serial: true}, {Key: "k", Tenant: tenant}} {
				if _, err := Publish(t.Context(), db, paid{1}, free); err != nil {
					t.Error(err)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			freed := ask[int64](t, db, `SELECT max(position) FROM outbox.events WHERE tenant_id <> $1`, tenant)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.events WHERE tenant_id = $1 AND key = 'k' AND position > $2`, tenant, held); n < 2 {
				t.Errorf("%s after %s: %d events of the key are behind those of the first (at %d), want the one without Serial and what waited", second, first, n, held)
			}
			if last := ask[int64](t, db, `SELECT max(position) FROM outbox.events WHERE tenant_id = $1`, tenant); last < freed {
				t.Errorf("%s after %s: what waited had its position before the lock", second, first)
			}
			exec(t, db, `DELETE FROM outbox.events`)
		}
	}
}

func TestAnEventWithoutAPartitionSaysWhatToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `DO $$ DECLARE day text; BEGIN FOR day IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass LOOP EXECUTE 'DROP TABLE ' || day; END LOOP; END $$`)
	if _, err := Publish(t.Context(), db, paid{1}, EventOptions{}); err == nil || !strings.Contains(err.Error(), "run a reaper") {
		t.Errorf("%v, want to be told to run a reaper", err)
	}
}

// A position that can be seen says that every transaction that may still fill a gap below it
// has a number below those that are given out from then on. So a transaction has
// its number before its position, and a relay that sees B does not take A's gap for one that
// nobody fills:
//
//	A  number, position 1, stalls here                                      COMMIT
//	B                         number, position 2, COMMIT
//	relay                                        sees 2, gap 1: A's number is below a new one
//
// Without its number A would be given one above that of the relay's new transaction, and its
// event would be skipped for good.
func TestATransactionHasItsNumberBeforeItsPosition(t *testing.T) {
	t.Parallel()
	keyed, plain := EventOptions{Key: "k"}, EventOptions{}
	ways := map[string]func(context.Context, DB, EventOptions) error{
		"Publish": func(ctx context.Context, db DB, opts EventOptions) error {
			_, err := Publish(ctx, db, stalls, opts)
			return err
		},
		"PublishMany": func(ctx context.Context, db DB, opts EventOptions) error {
			_, err := PublishMany(ctx, db, []PublishRequest{{stalls, opts}})
			return err
		},
		"COPY": func(ctx context.Context, db DB, opts EventOptions) error {
			many := make([]PublishRequest, copyFrom)
			for i := range many {
				many[i] = PublishRequest{stalls, opts}
			}
			_, err := PublishMany(ctx, db, many)
			return err
		},
		"SQL": func(ctx context.Context, db DB, opts EventOptions) error {
			_, err := db.Exec(ctx, `SELECT outbox.publish('stalls', '1', $1, tenant_id => $2)`, opts.Key, opts.Tenant)
			return err
		},
	}
	for way, publish := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			// Between the position, which is a default, and the row.
			exec(t, db, `
				CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
				CREATE TRIGGER stall BEFORE INSERT ON outbox.events FOR EACH ROW WHEN (NEW.topic = 'stalls') EXECUTE FUNCTION stall()`)
			for _, of := range []ID{RootTenant, tenant} {
				for _, opts := range []EventOptions{keyed, plain} {
					opts.Tenant = of
					holder := begin(t, db, pgx.ReadCommitted)
					exec(t, holder, `SELECT pg_advisory_xact_lock(7)`)
					done := make(chan error, 1)
					go func() { done <- publish(t.Context(), db, opts) }()
					pgtest.AwaitLocks(t, db, 1)
					seen, err := Publish(t.Context(), db, paid{1}, opts)
					if err != nil {
						t.Fatal(err)
					}
					next := ask[int64](t, db, `SELECT pg_current_xact_id()::text::bigint`)
					number := ask[*int64](t, db, `SELECT backend_xid::text::bigint FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`)
					if err := holder.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := <-done; err != nil {
						t.Fatal(err)
					}
					if !ask[bool](t, db, `SELECT min(position) < (SELECT position FROM outbox.events WHERE id = $1) FROM outbox.events WHERE topic = 'stalls'`, seen) {
						t.Fatal("it did not stall behind its position")
					}
					if number == nil || *number >= next {
						t.Errorf("of tenant %s, key %q: the transaction with the gap has no number below %d", of, opts.Key, next)
					}
					exec(t, db, `DELETE FROM outbox.events`)
				}
			}
		})
	}
}

var stalls = Raw{KindName: "stalls", Payload: []byte("1")}

// A role that may insert into the log itself is held to the limits, too.
func TestTheLogRefusesWhatPublishRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const insert = `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers) VALUES (gen_random_uuid(), gen_random_uuid(), `
	exec(t, db, insert+`'t', NULL, 'text/plain', '', NULL), (gen_random_uuid(), gen_random_uuid(), repeat('t', 128), repeat('k', 512), 'text/plain', repeat('p', 4194304)::bytea, '{}')`)
	for name, values := range map[string]string{
		"no topic":          `'', 'k', 'text/plain', '', NULL`,
		"a long topic":      `repeat('t', 129), 'k', 'text/plain', '', NULL`,
		"an empty key":      `'t', '', 'text/plain', '', NULL`,
		"a long key":        `'t', repeat('k', 513), 'text/plain', '', NULL`,
		"no content type":   `'t', 'k', '', '', NULL`,
		"a large payload":   `'t', 'k', 'text/plain', repeat('p', 4194305)::bytea, NULL`,
		"a list of headers": `'t', 'k', 'text/plain', '', '[]'`,
		"large headers":     `'t', 'k', 'text/plain', '', jsonb_build_object('h', repeat('h', 131072))`,
	} {
		constraint := "events_values"
		if name == "large headers" {
			constraint = "events_headers"
		}
		if _, err := db.Exec(t.Context(), insert+values+`)`); err == nil || !strings.Contains(err.Error(), constraint) {
			t.Errorf("%s: %v, want a violation of %s", name, err, constraint)
		}
	}
	// What the client takes has the most bytes more in the database if its headers are short.
	many, bytes := map[string]string{}, len(`{}`)
	for i := 0; bytes+len(`"1234":"",`) <= engine.MaxHeadersBytes; i++ {
		name := strconv.FormatInt(int64(i), 36)
		many[name] = ""
		bytes += len(name) + len(`"":"",`)
	}
	if _, err := Publish(t.Context(), db, stalls, EventOptions{Headers: many}); err != nil {
		t.Errorf("as many headers as Publish takes: %v", err)
	}
}

// The log with the columns of Debezium's outbox table.
func TestEventsAreShownAsDebeziumHasThem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, p := range []PublishRequest{
		{Event: Raw{KindName: "order", Payload: []byte(`{"n": 1}`)}, Options: EventOptions{Key: "7", Headers: map[string]string{"type": "OrderPaid"}}},
		{Event: Raw{KindName: "order.sent", Payload: []byte{0, 0xff}, ContentType: "application/octet-stream"}},
		{Event: Raw{KindName: "nul", Payload: []byte(`{"a":"\u0000"}`)}}, // which jsonb cannot hold
	} {
		if _, err := PublishMany(t.Context(), db, []PublishRequest{p}); err != nil {
			t.Fatal(err)
		}
	}
	for _, payload := range []string{`{"a"`, "\xff"} {
		_, err := db.Exec(t.Context(), `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload) VALUES (gen_random_uuid(), $1, 'sql', 'application/json', $2)`,
			RootTenant, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
	}
	reader := pgtest.Login(t, db, "outbox_reader")
	if _, err := db.Exec(t.Context(), `ALTER ROLE `+reader.Config().ConnConfig.User+` SET app.tenant_id = '`+RootTenant.String()+`'`); err != nil {
		t.Fatal(err)
	}
	rows, _ := reader.Query(t.Context(), `SELECT concat_ws(' ', aggregatetype, aggregateid, type, payload, position) FROM outbox.debezium_events ORDER BY position`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if want := []string{`order 7 OrderPaid {"n": 1} 1`, `order.sent order.sent 2`, `nul nul 3`, `sql sql 4`, `sql sql 5`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
