package watch_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// A reader that is sent that much has changed, rather than what, is not sent it again at once: its feed is not looked
// at for a while. Other feeds are, and one with a reader who wants all changes.
func TestAfterABurstTheFeedRests(t *testing.T) {
	t.Parallel()
	const most = 10
	for name, other := range map[string]bool{"alone": false, "beside a reader who wants all": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			changes := watch.NewChanges(db, watch.ChangesConfig{LookEvery: time.Millisecond})
			watch.RestAfterBurst(changes, time.Hour)
			open := func(tenant outbox.ID, most int) *watch.Reader {
				r, err := changes.Open(t.Context(), tenant, watch.Filter{Most: most}, watch.Position{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				r.Took(<-r.Batches()) // where it begins
				return r
			}
			brief, all := open(outbox.RootTenant, most), open(outbox.ID{}, 0)
			if other {
				open(outbox.RootTenant, 0)
			}
			store := func(n int) string {
				ids, err := outbox.EnqueueMany(t.Context(), db, slices.Repeat([]outbox.Request{{Args: outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}}}, n))
				if err != nil {
					t.Fatal(err)
				}
				return ids[n-1].String()
			}
			last := store(most + 1)
			awaitText(t, all, last)
			b := awaitText(t, brief, map[bool]string{false: "event: resync", true: last}[other])
			if want := map[bool]int{false: most, true: most + 1}[other]; b.Len() != want || len(b.Sample(2)) != 2 || (b.AtLeast > 0) == other {
				t.Errorf("the batch has %d changes, %d at least, want %d", b.Len(), b.AtLeast, want)
			}
			// Once a later change is seen, a look has come for all feeds after the one before it.
			first := store(1)
			awaitText(t, all, first)
			awaitText(t, all, store(1))
			if other {
				awaitText(t, brief, first)
				return
			}
			select {
			case b := <-brief.Batches():
				if len(b.Text) > 0 {
					t.Errorf("while it rests it is sent %q", b.Text)
				}
			default:
			}
		})
	}
}

// While a burst goes on, a feed is moved on without looks: its reader is told to read the jobs again. When it is over,
// the reader is sent what has changed.
func TestABurstThatGoesOnIsPassedOver(t *testing.T) {
	t.Parallel()
	const most = 10
	for name, of := range map[string]struct {
		tenant  outbox.ID
		atLeast int // of other tenants' jobs, which the statistics count as well, it promises nothing
	}{"of all tenants": {outbox.ID{}, most}, "of one": {outbox.RootTenant, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			changes := watch.NewChanges(db, watch.ChangesConfig{LookEvery: time.Millisecond})
			watch.RestAfterBurst(changes, 2*time.Second) // within which the server counts what was stored
			watch.LookInBurst(changes, time.Hour)
			r, err := changes.Open(t.Context(), of.tenant, watch.Filter{Most: most}, watch.Position{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			store := func(n int) {
				if _, err := outbox.EnqueueMany(t.Context(), db, slices.Repeat([]outbox.Request{{Args: outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}}}, n)); err != nil {
					t.Fatal(err)
				}
			}
			// until stores until there is such a batch.
			until := func(n int, pause time.Duration, is func(*watch.Batch) bool) *watch.Batch {
				t.Helper()
				for end := time.Now().Add(time.Minute); time.Now().Before(end); {
					store(n)
					select {
					case b := <-r.Batches():
						if r.Took(b); is(b) {
							return b
						}
					case <-time.After(pause):
					}
				}
				t.Fatal("it does not come within a minute")
				return nil
			}
			if !of.tenant.IsZero() { // for all tenants the statistics may have counted the burst before a look found it
				looked := until(most+1, 10*time.Millisecond, func(b *watch.Batch) bool { return b.Resync })
				if len(looked.Sample(1)) != 1 || looked.AtLeast == 0 {
					t.Errorf("the first resync has %d changes and no sample, want those of a look", looked.AtLeast)
				}
			}
			passed := until(most+1, 10*time.Millisecond, func(b *watch.Batch) bool { return b.Resync && len(b.Sample(1)) == 0 })
			if passed.AtLeast != of.atLeast {
				t.Errorf("what was passed over is %d changes at least, want %d", passed.AtLeast, of.atLeast)
			}
			until(1, time.Second, func(b *watch.Batch) bool { return !b.Resync && b.Len() > 0 })
		})
	}
}

func TestTheRestAfterABurst(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 2 * time.Millisecond: 200 * time.Millisecond, 50 * time.Millisecond: 5 * time.Second, time.Minute: 5 * time.Second,
	} {
		if got := watch.RestOfBurst(took); got != want {
			t.Errorf("after a look of %s it rests %s, want %s", took, got, want)
		}
	}
}

// awaitText returns the next of the reader's batches whose text has a part.
func awaitText(t *testing.T, r *watch.Reader, part string) *watch.Batch {
	t.Helper()
	for {
		select {
		case b := <-r.Batches():
			if r.Took(b); strings.Contains(string(b.Text), part) {
				return b
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q does not come", part)
		}
	}
}
