package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestJobsAreFoundWhereTheyAreWantedByTheirTenant(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	mine, other := outbox.ID{0: 0xa, 15: 1}, outbox.ID{0: 0xb, 15: 1}
	done, _ := reach(t, db, outbox.Succeeded)
	dead, _ := reach(t, db, outbox.Dead)
	open := enqueue(t, db, "mail", outbox.Options{Tenant: mine})
	found, err := o.Find(t.Context(), []operator.Wanted{
		{ID: open, Tenant: mine},
		{ID: open, Tenant: other},
		{ID: outbox.NewID()},
		{ID: done},
		{ID: done, Tenant: mine},
		{ID: dead, Tenant: outbox.RootTenant},
		{ID: open},
	})
	if err != nil {
		t.Fatal(err)
	}
	var zero outbox.ID
	if got, want := ids(found), []outbox.ID{open, zero, zero, done, zero, dead, open}; !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v", got, want)
	}
	for _, i := range []int{3, 5, 6} {
		want := job(t, o, found[i].ID)
		want.Payload, want.Headers, want.Result, want.Attempts = nil, nil, nil, nil
		if got := found[i]; got.Status != want.Status || got.Tenant != want.Tenant || got.PayloadBytes != want.PayloadBytes || got.ErrorMessage != want.ErrorMessage ||
			!got.FinishedAt.Equal(want.FinishedAt) || got.Worker != want.Worker || got.Payload != nil {
			t.Errorf("found %+v, want %+v", got, want)
		}
	}
	if _, err := o.Find(t.Context(), make([]operator.Wanted, 1001)); err == nil {
		t.Error("more than 1000 were looked for")
	}
}

func TestJobsAreListedByTenantKeyAndTime(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	mine := outbox.ID{0: 0xa, 15: 1}
	closed, _ := reach(t, db, outbox.Succeeded)
	keyed := enqueue(t, db, "mail", outbox.Options{Tenant: mine, Key: outbox.KeyRules{Name: "k"}})
	plain := enqueue(t, db, "mail", outbox.Options{Tenant: mine})
	root := enqueue(t, db, "mail", outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	at := job(t, o, plain).CreatedAt
	for name, tt := range map[string]struct {
		filter operator.Filter
		want   []outbox.ID
	}{
		"a tenant":                     {operator.Filter{Tenant: mine}, []outbox.ID{plain, keyed}},
		"the root tenant":              {operator.Filter{Tenant: outbox.RootTenant}, []outbox.ID{root, closed}},
		"a key":                        {operator.Filter{Key: "k"}, []outbox.ID{root, keyed}},
		"a tenant's key":               {operator.Filter{Key: "k", Tenant: mine}, []outbox.ID{keyed}},
		"from an instant on":           {operator.Filter{CreatedSince: at}, []outbox.ID{root, plain}},
		"until an instant":             {operator.Filter{CreatedUntil: at}, []outbox.ID{keyed, closed}},
		"a day that has not come":      {operator.Filter{CreatedSince: at.Add(48 * time.Hour)}, nil},
		"between":                      {operator.Filter{CreatedSince: at, CreatedUntil: at.Add(time.Microsecond)}, []outbox.ID{plain}},
		"without the newest":           {operator.Filter{Skip: 1, Limit: 2}, []outbox.ID{plain, keyed}},
		"a page within a time":         {operator.Filter{CreatedUntil: at.Add(time.Hour), Before: plain}, []outbox.ID{keyed, closed}},
		"more left out than there are": {operator.Filter{Skip: 10}, nil},
	} {
		jobs, err := o.Jobs(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(jobs); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	for _, skip := range []int{-1, operator.MaxSkip + 1} {
		_, err := o.Jobs(t.Context(), operator.Filter{Skip: skip})
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("leaving out %d: %v, want an InvalidError", skip, err)
		}
	}
	theirs, byTenant, err := o.CountOpen(t.Context(), mine)
	if err != nil || len(theirs) != 1 || theirs["default"].Jobs[outbox.Pending] != 2 || byTenant != nil {
		t.Errorf("open jobs of a tenant = %v, %v, %v", theirs, byTenant, err)
	}
	all, byTenant, err := o.CountOpen(t.Context(), outbox.ID{})
	if err != nil || !cmp.Equal(theirs, byTenant[mine]) || cmp.Equal(all, theirs) {
		t.Errorf("open jobs of all = %v, of which %v, %v; want those of the tenant to be a part of them", all, byTenant, err)
	}
}
