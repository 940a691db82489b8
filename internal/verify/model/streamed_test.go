package model_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/verify/model"
	"github.com/posthaste-dev/posthaste/internal/verify/rebuilt"
	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

// After any operations on streamed jobs, their events rebuild what the database stores of them: plain and keyed jobs,
// of the root tenant and of another one.
func TestEventsRebuildStreamedJobs(t *testing.T) {
	t.Parallel()
	another := outbox.NewID()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": another} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := onlyOurs(t)
			plain, keyed := model.New(db), model.NewKeyed(db)
			plain.Streamed, plain.Tenant, keyed.Streamed, keyed.Tenant = true, tenant, true, tenant
			seen := map[lifecycle.Name]int{}
			playAndCompare := func(m counted, want int) {
				for m.Ops() < want && !t.Failed() {
					rapid.Check(t, func(t *rapid.T) {
						if m.Ops() >= want {
							return
						}
						play(t, m)
						found, err := rebuilt.Compare(t.Context(), db, asMoved)
						if err != nil {
							t.Fatal(err)
						}
						for _, difference := range found.Differences {
							t.Error(difference)
						}
						for name, n := range found.Names {
							seen[name] += n
						}
					})
				}
			}
			playAndCompare(plain, wantOps(t, 2_000))
			playAndCompare(keyed, wantOps(t, 1_000))
			t.Logf("%d operations, %v", plain.Ops()+keyed.Ops(), seen)
			// Some events are rare: play on until each has occurred.
			for more := 0; more < 20 && len(unseen(seen)) > 0 && !t.Failed(); more++ {
				playAndCompare(plain, plain.Ops()+500)
				playAndCompare(keyed, keyed.Ops()+200)
			}
			for _, name := range unseen(seen) {
				t.Errorf("no event was %s; there were %v", name, slices.Sorted(maps.Keys(seen)))
			}
		})
	}
}

// unseen returns the events that a streamed job can have and that have not occurred.
func unseen(seen map[lifecycle.Name]int) (names []lifecycle.Name) {
	for _, name := range []lifecycle.Name{
		lifecycle.Created, lifecycle.Released, lifecycle.Started, lifecycle.Retry, lifecycle.Snoozed, lifecycle.Interrupted,
		lifecycle.Blocked, lifecycle.Unblocked, lifecycle.Failed, lifecycle.Dead, lifecycle.Retried, lifecycle.Completed,
		lifecycle.Cancelled, lifecycle.Expired, lifecycle.Dismissed,
	} {
		if seen[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

type counted interface {
	machine
	Ops() int
}

// asMoved clears the fields that operations change by hand: times, and the number of lost leases.
func asMoved(stored, rebuilt *lifecycle.State) {
	for _, s := range []*lifecycle.State{stored, rebuilt} {
		s.RunAt, s.Deadline, s.StartedAt, s.LostLeases = time.Time{}, time.Time{}, time.Time{}, 0
	}
}
