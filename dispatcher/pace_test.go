package dispatcher

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// forged returns how many claims a queue with so many workers makes for jobs that come one by one, while somebody
// forges notifications, which come during claims as well as between them. Before them it has done a job of each flow.
func forged(t *testing.T, workers, jobs int, every time.Duration, flows func(rig)) (claims int) {
	t.Helper()
	const each = time.Millisecond // a claim
	inMemory(t, workers, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		flows(r)
		r.capacity.Poke()
		r.sleep(time.Minute)
		r.set(func() { r.take = func(claimRequest) time.Duration { return each } })
		forging, end := context.WithCancel(context.Background())
		var forger sync.WaitGroup
		forger.Go(func() {
			for forging.Err() == nil {
				r.capacity.Poke()
				time.Sleep(each / 5)
			}
		})
		before, _ := r.counts()
		known := len(r.done)
		for range jobs {
			r.add(outbox.RootTenant, 1, 0)
			r.capacity.Poke()
			time.Sleep(every)
		}
		end()
		forger.Wait()
		r.sleep(time.Second / 50)
		after, _ := r.counts()
		claims = after - before
		if done := len(r.done) - known; done != jobs {
			t.Errorf("%d of %d jobs have succeeded", done, jobs)
		}
	})
	return claims
}

// Real jobs cost a claim each, and forged notifications cost no more than fifty looks in a second, whatever the claims
// find: also if a claim has too little room to look at all flows, and so looks at them in turn. A look at jobs with a
// key and at jobs without one takes two claims.
func TestForgedNotificationsCostFewClaims(t *testing.T) {
	const jobs, every = 600, 10 * time.Millisecond
	const looks = 50*int(jobs*every/time.Second) + 2*3
	for name, c := range map[string]struct {
		workers, perLook int
		flows            func(rig)
	}{
		"one flow":   {4, 1, func(rig) {}},
		"with a key": {16, 2, func(r rig) { r.addKeyed(outbox.RootTenant, 1, 0, "k") }},
		"one worker": {1, 2, func(r rig) { r.addKeyed(outbox.RootTenant, 1, 0, "k") }},
		"more tenants than workers": {2, 6, func(r rig) {
			for n := range 6 {
				r.add(numbered(n), 1, 0)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if n := forged(t, c.workers, jobs, every, c.flows); n > c.perLook*(jobs+looks) {
				t.Errorf("%d claims for %d jobs, want %d at most", n, jobs, c.perLook*(jobs+looks))
			}
		})
	}
}

// While notifications come all the time, a worker that becomes free gets its next job at once.
func TestForgedNotificationsDoNotDelayTheUseOfRoom(t *testing.T) {
	const jobs, each = 100, 50 * time.Millisecond
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error { time.Sleep(each); return nil }, Config{}, func(r rig) {
		r.add(outbox.RootTenant, jobs, 0)
		began := time.Now()
		for len(r.done) < jobs && time.Since(began) < time.Minute {
			r.capacity.Poke()
			time.Sleep(time.Millisecond / 5)
		}
		if took, want := time.Since(began), jobs*each; took > want+want/50 {
			t.Errorf("%d jobs took %s, want %s", jobs, took, want)
		}
	})
}

// Room that a drain has answered lets no notification through that comes later.
func TestAnsweredRoomIsForgotten(t *testing.T) {
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.capacity.RoomMade()
		r.sleep(time.Second)
		if r.capacity.HasRoom() {
			t.Error("a notification would need no token because of room that was used long ago")
		}
	})
}
