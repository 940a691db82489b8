package outbox

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// ledgerEntry is a kind that says how its jobs are run.
type ledgerEntry struct {
	Account  string
	defaults Options
}

func (ledgerEntry) Kind() string              { return "ledger.entry" }
func (l ledgerEntry) DefaultOptions() Options { return l.defaults }

// A new field of Options has to say what a kind's default of it means.
func TestEveryOptionCanBeTheKinds(t *testing.T) {
	t.Parallel()
	others := map[string]any{ // where one and two are not values of the field
		"RunAt": time.Unix(2, 0), "Deadline": time.Unix(2, 0), "Backoff": Backoff{2}, "Headers": map[string]string{"two": "2"}, "Tenant": ID{2},
		"Caller": Caller{Service: "two"}, "Check": twoChecks{}, "Protect": twoSeals{},
	}
	fields := append(reflect.VisibleFields(reflect.TypeFor[Options]()), reflect.VisibleFields(reflect.TypeFor[KeyRules]())...)
	for _, field := range fields {
		name := field.Name
		if name == "Key" || len(field.Index) > 1 { // its fields come themselves
			continue
		}
		var kind, mine Options
		if name == "watched" {
			kind.watched = isWatched
			if !*engine.InternalOf(new(withDefaultsOf(ledgerEntry{defaults: kind}, Options{}))) {
				t.Error("the kind's jobs are not watched")
			}
			continue
		}
		set(&kind, name, 1, nil)
		if diff := cmp.Diff(kind, withDefaultsOf(ledgerEntry{defaults: kind}, Options{}), sameInside); diff != "" {
			t.Errorf("%s of the kind does not count (-want +got):\n%s", name, diff)
		}
		if set(&mine, name, 2, others[name]); field.Type.Kind() == reflect.Bool {
			continue // there is only one
		}
		if diff := cmp.Diff(mine, withDefaultsOf(ledgerEntry{defaults: kind}, mine), sameInside); diff != "" {
			t.Errorf("%s of the producer does not count (-want +got):\n%s", name, diff)
		}
	}
}

var sameInside = cmp.Exporter(func(reflect.Type) bool { return true })

type (
	twoChecks struct{ Checker }
	twoSeals  struct{ Protector }
)

// set gives a field the value n, or the other one.
func set(o *Options, name string, n int64, other any) {
	f := reflect.ValueOf(&o.Key).Elem().FieldByName(name)
	if !f.IsValid() {
		f = reflect.ValueOf(o).Elem().FieldByName(name)
	}
	switch {
	case other != nil:
		f.Set(reflect.ValueOf(other))
	case name == "Check":
		f.Set(reflect.ValueOf(struct{ Checker }{}))
	case name == "Protect":
		f.Set(reflect.ValueOf(struct{ Protector }{}))
	case f.CanInt():
		f.SetInt(n)
	case f.Kind() == reflect.String:
		f.SetString(strings.Repeat("x", int(n)))
	case f.Kind() == reflect.Bool:
		f.SetBool(true)
	default:
		f.Set(map[string]reflect.Value{
			"RunAt": reflect.ValueOf(time.Unix(n, 0)), "Deadline": reflect.ValueOf(time.Unix(n, 0)), "Backoff": reflect.ValueOf(Backoff{1}),
			"Headers": reflect.ValueOf(map[string]string{"one": "1"}), "Tenant": reflect.ValueOf(ID{1}), "Caller": reflect.ValueOf(Caller{User: "one"}),
		}[name])
	}
}

// A producer that says half of what belongs together does not get the other half of
// something else.
func TestWhatBelongsTogetherIsTakenTogether(t *testing.T) {
	t.Parallel()
	kind := ledgerEntry{defaults: Options{
		RunAt: time.Unix(9, 0), Key: KeyRules{Name: "k", Ordered: true, OnDeath: ParkKey, ParkAfter: time.Hour, MaxQueued: 3, WhenFull: CoalesceFull},
	}}
	got := withDefaultsOf(kind, Options{Delay: time.Second, Key: KeyRules{OnDeath: SkipDead, MaxQueued: 1}})
	want := Options{Delay: time.Second, Key: KeyRules{Name: "k", Ordered: true, OnDeath: SkipDead, MaxQueued: 1}}
	if diff := cmp.Diff(want, got, sameInside); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

func TestAKindSaysHowItsJobsAreRunWhoeverEnqueuesThem(t *testing.T) {
	t.Parallel()
	kind := func(account string) ledgerEntry {
		return ledgerEntry{Account: account, defaults: Options{Queue: "ledger", MaxAttempts: 3, Key: KeyRules{Name: account, Ordered: true, OnDeath: SkipDead}}}
	}
	many := func(n int, opts Options) (requests []Request) {
		for range n {
			requests = append(requests, Request{Args: kind("a"), Options: opts})
		}
		return requests
	}
	for name, enqueue := range map[string]func(t *testing.T, db *pgxpool.Pool) (ID, error){
		"Enqueue": func(t *testing.T, db *pgxpool.Pool) (ID, error) {
			return Enqueue(t.Context(), db, kind("a"), Options{MaxAttempts: 4})
		},
		"Submit": func(t *testing.T, db *pgxpool.Pool) (ID, error) {
			done, err := Submit(t.Context(), db, kind("a"), Options{MaxAttempts: 4, Key: KeyRules{MaxQueued: 1}})
			return done.ID, err
		},
		"a producer": func(t *testing.T, db *pgxpool.Pool) (id ID, err error) {
			p := NewProducer(db, NotifyOff)
			err = p.InTx(t.Context(), func(tx pgx.Tx) (err error) {
				id, err = p.Enqueue(t.Context(), tx, kind("a"), Options{MaxAttempts: 4})
				return err
			})
			return id, err
		},
		"EnqueueMany by INSERT": func(t *testing.T, db *pgxpool.Pool) (ID, error) {
			ids, err := EnqueueMany(t.Context(), db, many(2, Options{MaxAttempts: 4}))
			return ids[1], err
		},
		"EnqueueMany by COPY": func(t *testing.T, db *pgxpool.Pool) (ID, error) {
			requests := many(copyFrom, Options{MaxAttempts: 4})
			ids, err := EnqueueMany(t.Context(), db, requests)
			if diff := cmp.Diff(Options{MaxAttempts: 4}, requests[1].Options, sameInside); diff != "" {
				t.Errorf("the caller's own request was changed (-was +is):\n%s", diff)
			}
			return ids[1], err
		},
		"a follow-up": func(t *testing.T, db *pgxpool.Pool) (ID, error) {
			parent, err := Enqueue(t.Context(), db, greet{"ada"}, Options{})
			if err != nil {
				return ID{}, err
			}
			job := lease(t, db, parent)
			job.Tenant = RootTenant
			id, err := job.Then(kind("a"), Options{MaxAttempts: 4})
			if err != nil {
				return ID{}, err
			}
			return id, job.Complete(t.Context(), db)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id, err := enqueue(t, db)
			if err != nil {
				t.Fatal(err)
			}
			type rules struct {
				Queue       string
				MaxAttempts int
				Key         string
				Ordered     bool
				OnDeath     string
			}
			var got rules
			err = db.QueryRow(t.Context(), `SELECT queue, max_attempts, key, ordered, on_death FROM outbox.jobs WHERE id = $1`, id).
				Scan(&got.Queue, &got.MaxAttempts, &got.Key, &got.Ordered, &got.OnDeath)
			if diff := cmp.Diff(rules{"ledger", 4, "a", true, "skip"}, got); diff != "" || err != nil {
				t.Errorf("stored (-want +got):\n%s%v", diff, err)
			}
		})
	}
}

func TestDefaultsThatAreNotAcceptableAreNamed(t *testing.T) {
	t.Parallel()
	headless := ledgerEntry{defaults: Options{Key: KeyRules{Ordered: true}}} // and no key
	for name, enqueue := range map[string]func() error{
		"Enqueue": func() error { _, err := Enqueue(t.Context(), untouched{t: t}, headless, Options{}); return err },
		"Submit":  func() error { _, err := Submit(t.Context(), untouched{t: t}, headless, Options{}); return err },
		"EnqueueMany": func() error {
			_, err := EnqueueMany(t.Context(), untouched{t: t}, []Request{{Args: headless}})
			return err
		},
		"Then":   func() error { _, err := new(Claimed).Then(headless, Options{}); return err },
		"Encode": func() error { _, err := Encode(headless, Options{}); return err },
	} {
		err := enqueue()
		if got := mistakes(err); len(got) != 1 || got[0].Field != "Options.Key" || !strings.Contains(err.Error(), `"ledger.entry" with its DefaultOptions: Options.Key`) {
			t.Errorf("%s: %v, want it to name Options.Key, and whose it is", name, err)
		}
	}
}

func withDefaultsOf(args Args, opts Options) Options {
	opts.fillFrom(args)
	return opts
}
