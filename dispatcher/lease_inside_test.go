package dispatcher

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/clock/clocktest"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A machine that was suspended trusts leases that have lapsed meanwhile, by its monotonic clock. The database is asked
// first of all, as after any extension that is late.
func TestASuspendedMachineExtendsItsLeasesAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	soon, renewBelow := now.Add(2*time.Second), 36*time.Second
	for name, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"awake":               {soon, false},
		"suspended":           {clocktest.Suspended(soon, time.Hour), true},
		"its clock set back":  {clocktest.Suspended(soon, -time.Hour), false},
		"a third is used":     {now.Add(20 * time.Second), true},
		"that, and set back":  {clocktest.Suspended(now.Add(20*time.Second), -time.Hour), true},
		"suspended in a blip": {clocktest.Suspended(soon, time.Second), false},
	} {
		a := &attempt{leaseUntil: now.Add(54 * time.Second)}
		if got := a.needsExtension(c.now, renewBelow); got != c.want {
			t.Errorf("%s: the lease needs to be extended: %t, want %t", name, got, c.want)
		}
		if a.lapsed(c.now) {
			t.Errorf("%s: the handler is stopped, and the database has not said a word", name)
		}
		if late := a.extended(c.now, c.now); late != (name == "suspended") {
			t.Errorf("%s: the extension is late: %t", name, late)
		}
	}
}

// refusingExtensions extends leases, but a statement with one job fails as a whole.
type refusingExtensions struct{ of outbox.ID }

func (r refusingExtensions) ExtendLeases(_ context.Context, p sqlgen.ExtendLeasesParams) (rows []sqlgen.ExtendLeasesRow, err error) {
	if slices.Contains(p.Ids, pgvalue.UUID(r.of)) {
		return nil, &pgconn.PgError{Code: "P0001", Message: "the user's trigger says no"}
	}
	return nil, nil // those that are not listed are extended
}

// A user's trigger that refuses one job's row costs that job its lease, and no other job that runs at the same time.
func TestARefusedExtensionCostsOneLease(t *testing.T) {
	t.Parallel()
	mux := new(Mux)
	mux.HandleRaw(tiny{}.Kind(), nil)
	d, err := New(nil, mux, Config{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var held []*attempt
	for n := range 9 {
		for _, key := range []string{"", "k"} {
			held = append(held, &attempt{job: newJob(tiny{}.Kind(), numbered(n%2), 0, key), leaseUntil: began})
		}
	}
	l := newLeases(d.common, nil, refusingExtensions{held[5].job.ID})
	if err := l.extend(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	for i, a := range held {
		if extended := a.leaseUntil.After(began); extended != (i != 5) {
			t.Errorf("the lease of job %d is extended: %t", i, extended)
		}
	}
}

// rowsGone answers that the jobs belong to another worker, or are in the history.
type rowsGone struct{}

func (rowsGone) ExtendLeases(_ context.Context, p sqlgen.ExtendLeasesParams) (rows []sqlgen.ExtendLeasesRow, err error) {
	for i, id := range p.Ids {
		rows = append(rows, sqlgen.ExtendLeasesRow{ID: id, Epoch: p.Epochs[i], Lost: true})
	}
	return rows, nil
}

// A job that is gone because its handler has completed it does not end that handler; a job that is gone for another
// reason does.
func TestAHandlerOutlivesItsCompletedJob(t *testing.T) {
	t.Parallel()
	mux := new(Mux)
	mux.HandleRaw(tiny{}.Kind(), nil)
	d, err := New(nil, mux, Config{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var held []*attempt
	for n := range 8 {
		a := &attempt{job: newJob(tiny{}.Kind(), numbered(n&1), 0, []string{"", "k"}[n>>1&1]), leaseUntil: began}
		engine.InternalOf(a.job).Completed.Store(n < 4)
		held = append(held, a)
	}
	l := newLeases(d.common, nil, rowsGone{})
	l.add(held)
	if err := l.extend(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	l.dropLapsed(time.Now())
	for n, a := range held {
		if a.LeaseLost() == (n < 4) {
			t.Errorf("job %d, completed: %t; its handler is stopped: %t", n, n < 4, a.LeaseLost())
		}
	}
}
