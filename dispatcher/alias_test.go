package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A kind is renamed. The handler and the hooks of the new kind carry out jobs stored under the former name, and those
// of its hooks, of root and of another tenant, with a key and without.
func TestARenamedKindStrandsNoJob(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var jobs int
	for _, tenant := range []outbox.ID{{}, outbox.NewID()} {
		for _, key := range []outbox.KeyRules{{}, {Name: "k"}} {
			for _, payload := range []string{`{"n": 1}`, `{"n": 2}`} { // 2 fails for good
				for _, kind := range []string{"probe", "was_probe"} {
					enqueue(t, db, outbox.Raw{KindName: kind, Payload: []byte(payload)}, outbox.Options{Tenant: tenant, Key: key})
					jobs++
				}
			}
		}
	}
	// A hook job that the previous build stored.
	enqueue(t, db, outbox.Raw{KindName: "was_probe:on_success", Payload: []byte(`{"args": {"n": 3}}`)}, outbox.Options{})

	mux := handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 2 {
			return dispatcher.Discard(errors.New("two"))
		}
		return nil
	})
	mux.Alias("probe", "was_probe", "was_before")
	dispatcher.OnSuccess(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil })
	dispatcher.OnDeath(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil })
	start(t, db, mux, dispatcher.Config{})
	await(t, db, "every job is done, and its hook", `SELECT count(*) FILTER (WHERE status = 'succeeded') = $1 FROM outbox.history`, jobs/2+jobs+1)
	for _, kind := range []string{"probe", "was_probe"} {
		got := ask[string](t, db, `
			SELECT concat_ws(' ', (SELECT count(*) FROM outbox.history WHERE kind = $1), (SELECT count(*) FROM outbox.jobs WHERE kind = $1 AND status = 'failed'))`, kind)
		if want := fmt.Sprint(jobs/4, " ", jobs/4); got != want {
			t.Errorf("of %s succeeded and failed %s, want %s", kind, got, want)
		}
	}
	if got := ask[string](t, db, `SELECT string_agg(kind || ' ' || hook_kind, ', ' ORDER BY kind) FROM outbox.death_hooks`); got != "probe probe:on_death, was_before probe:on_death, was_probe probe:on_death" {
		t.Errorf("death hooks are %s", got)
	}
}

func TestAnAliasThatMeansTwoThingsIsRefused(t *testing.T) {
	t.Parallel()
	for name, register := range map[string]func(*dispatcher.Mux){
		"of a handler's kind": func(m *dispatcher.Mux) { m.Alias("other", "probe") },
		"twice":               func(m *dispatcher.Mux) { m.Alias("probe", "a"); m.Alias("probe", "a") },
		"and then a handler":  func(m *dispatcher.Mux) { m.Alias("probe", "a"); m.HandleRaw("a", ignore) },
		"not a name":          func(m *dispatcher.Mux) { m.Alias("probe", "") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("an alias %s does not panic", name)
				}
			}()
			register(handle(nil))
		}()
	}
	mux := handle(nil)
	mux.Alias("gone", "older")
	if _, err := dispatcher.New(nil, mux, dispatcher.Config{}); err == nil {
		t.Error("New takes an alias of a kind without a handler")
	}
}

// A hook belongs to the kind, whatever name its jobs have: a hook of a former name would never be called.
func TestAHookOfAFormerNameIsAMistake(t *testing.T) {
	t.Parallel()
	mux := new(dispatcher.Mux)
	mux.HandleRaw("renamed", ignore)
	mux.Alias("renamed", "probe")
	dispatcher.OnDeath(mux, func(context.Context, *outbox.Job[dispatcher.Ended[probe]]) error { return nil })
	_, err := dispatcher.New(nil, mux, dispatcher.Config{})
	if want := `OnDeath is for kind "probe", which has no handler`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("New = %v, want it to say %q", err, want)
	}
}
