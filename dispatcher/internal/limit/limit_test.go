package limit

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A dispatcher that starts as many jobs as the log allows, whenever there is room, keeps the rate in every span of the
// interval, and comes within two hundredths of it.
func TestStartLogKeepsTheRate(t *testing.T) {
	t.Parallel()
	const rate, interval = 50, time.Second
	for range 20 {
		now := time.Date(2027, 1, 31, 9, 0, 0, 0, time.UTC)
		begin := now
		var starts []time.Time
		var times []pgtype.Timestamptz
		var counts []int32
		for range 2000 {
			log := newStartLog(interval, now, times, counts)
			if room := rate - log.started(); room > 0 {
				for range 1 + rand.IntN(room) {
					log.add(now)
					starts = append(starts, now)
				}
				times, counts = log.times, log.counts // as it is stored
			} else if next := log.next(now); next <= 0 || next > interval {
				t.Fatalf("full, and room in %s", next)
			}
			if len(times) > rateParts+1 {
				t.Fatalf("%d times are remembered", len(times))
			}
			now = now.Add(time.Duration(rand.IntN(30_000)) * time.Microsecond)
		}
		for i, at := range starts {
			if i+rate < len(starts) && starts[i+rate].Sub(at) < interval {
				t.Fatalf("%d starts in %s", rate+1, starts[i+rate].Sub(at))
			}
		}
		// A look every 15 ms costs as much again.
		if most := float64(rate) * now.Sub(begin).Seconds(); float64(len(starts)) < most*0.95 {
			t.Errorf("%d starts, %.0f would have been allowed", len(starts), most)
		}
	}
}

// Impossible times are dropped: a clock that was ahead must not stop a queue until the true time has caught up.
func TestStartLogForgetsTheFuture(t *testing.T) {
	t.Parallel()
	now := time.Date(2027, 1, 31, 9, 0, 0, 0, time.UTC)
	at := func(d time.Duration) pgtype.Timestamptz { return pgtype.Timestamptz{Time: now.Add(d), Valid: true} }
	log := newStartLog(time.Minute, now,
		[]pgtype.Timestamptz{at(-time.Minute), at(-time.Second), at(time.Second), at(time.Hour)}, []int32{1, 2, 4, 8})
	if n := log.started(); n != 6 {
		t.Errorf("started = %d, want 2 a second ago and 4 in a second", n)
	}
	if next := log.next(now); next != 59*time.Second {
		t.Errorf("room in %s, want 59s", next)
	}
}

func TestUsageRoom(t *testing.T) {
	t.Parallel()
	now := pgtype.Timestamptz{Time: time.Now(), Valid: true}
	used := sqlgen.MeasureQueueRow{
		Now: now, RateSeconds: 60, Running: make([]pgtype.UUID, 3), StartTimes: []pgtype.Timestamptz{now}, StartCounts: []int32{7},
	}
	for name, c := range map[string]struct {
		paused           bool
		maxRunning, rate *int32
		room             int
		reason           string // of a claim that took the room
	}{
		"paused":             {true, nil, nil, 0, "paused"},
		"some may run":       {false, new(int32(5)), nil, 2, "max_running"},
		"too many run":       {false, new(int32(2)), nil, 0, "max_running"},
		"some may start":     {false, nil, new(int32(8)), 1, "rate"},
		"too many started":   {false, nil, new(int32(6)), 0, "rate"},
		"fewer may run":      {false, new(int32(5)), new(int32(20)), 2, "max_running"},
		"fewer may start":    {false, new(int32(50)), new(int32(8)), 1, "rate"},
		"more than is asked": {false, new(int32(50)), new(int32(50)), 10, "max_running"},
	} {
		m := used
		m.Paused, m.MaxRunning, m.Rate = c.paused, c.maxRunning, c.rate
		u := newUsage(m)
		room := u.room(10)
		if room != c.room {
			t.Errorf("%s: room = %d, want %d", name, room, c.room)
		}
		for range room {
			u.log.add(now.Time)
		}
		if got := u.reason(); got != c.reason {
			t.Errorf("%s: stopped by %s, want %s", name, got, c.reason)
		}
	}
}

// Only where too many jobs run does a job that ends make room.
func TestWhetherAJobThatEndsMakesRoom(t *testing.T) {
	t.Parallel()
	now := pgtype.Timestamptz{Time: time.Now(), Valid: true}
	for name, c := range map[string]struct {
		paused           bool
		maxRunning, rate *int32
		busy             bool // another process holds the usage
		claimed          int
		makesRoom        bool
	}{
		"as many run as may":              {maxRunning: new(int32(2)), claimed: 2, makesRoom: true},
		"another process looks":           {busy: true, makesRoom: true},
		"paused":                          {paused: true, maxRunning: new(int32(2))},
		"as many have started as may":     {rate: new(int32(2)), claimed: 2},
		"there were fewer jobs than room": {maxRunning: new(int32(2)), claimed: 1},
		"the claim got all":               {maxRunning: new(int32(50)), claimed: 10},
	} {
		l := &Limiter{
			State: new(State), Notice: time.Second, Poll: func() time.Duration { return time.Hour }, Reached: func(string) {},
		}
		l.State.Found()
		l.State.Store(reached) // as Look leaves it
		u := newUsage(sqlgen.MeasureQueueRow{Now: now, Paused: c.paused, MaxRunning: c.maxRunning, Rate: c.rate, RateSeconds: 60})
		if u.asked = 10; !c.busy {
			u.Conn, u.Allowed = new(pgxpool.Conn), u.room(10)
		}
		for range c.claimed {
			u.Add(outbox.NewID(), now.Time)
		}
		l.Rest(u, c.claimed)
		if !l.State.Known() || l.State.Reached() != c.makesRoom {
			t.Errorf("%s: the queue is limited: %t; one that ends makes room: %t, want %t", name, l.State.Known(),
				l.State.Reached(), c.makesRoom)
		}
	}
}
