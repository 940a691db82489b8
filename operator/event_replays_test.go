package operator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A plan's time is not negative, however many events it has and however slow it is.
func TestAPlanOfManyTakesLong(t *testing.T) {
	t.Parallel()
	const century = 100 * 365 * 24 * time.Hour
	for n, want := range map[int64]time.Duration{0: 0, 7: 7000 * time.Second, 3_000_000: 3_000_000_000 * time.Second, 9_300_000: century, 1 << 60: century} {
		if got := operator.TimeOf(n, operator.MinPerSecond); got != want {
			t.Errorf("%d take %s, want %s", n, got, want)
		}
	}
}

// A dry run for a sink that is not there finds that out, unless it is a tenant's, to which that is not to be known.
func TestAReplayToASinkThatIsNotThere(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	if _, err := outbox.Publish(t.Context(), db, outbox.Raw{KindName: "order.paid", Payload: []byte("{}")}, outbox.EventOptions{}); err != nil {
		t.Fatal(err)
	}
	everything := operator.WithTenant(t.Context(), outbox.ID{})
	for _, who := range []*operator.Operator{o, operator.New(pgtest.Login(t, db, "outbox_api"))} {
		for sink, want := range map[string]error{"orders": nil, "order": operator.ErrSinkNotFound} {
			plan, err := who.WouldReplayEvents(everything, sink, operator.EventReplay{})
			if !errors.Is(err, want) || err == nil && plan.Events != 1 || err != nil && plan != (operator.ReplayPlan{}) {
				t.Errorf("to %s it would be %+v, %v; want %v", sink, plan, err, want)
			}
			one := operator.EventReplay{EventFilter: operator.EventFilter{Tenant: outbox.RootTenant}}
			if plan, err = who.WouldReplayEvents(operator.WithTenant(t.Context(), outbox.RootTenant), sink, one); err != nil || plan.Events != 1 {
				t.Errorf("to %s it would be %+v, %v for a tenant; want its event", sink, plan, err)
			}
		}
		if _, err := who.ReplayEvents(everything, "order", operator.EventReplay{}); !errors.Is(err, operator.ErrSinkNotFound) {
			t.Errorf("a replay to no sink: %v", err)
		}
		nothing := operator.EventReplay{EventFilter: operator.EventFilter{Topics: []string{"nothing"}}}
		if _, err := who.ReplayEvents(everything, "orders", nothing); !errors.Is(err, operator.ErrNothingToReplay) {
			t.Errorf("a replay of nothing: %v", err)
		}
	}
}
