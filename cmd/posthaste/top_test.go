package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func someSight(at time.Time, enqueued int64) sight {
	return sight{
		Overview: operator.Overview{
			AsOf: at, Estimated: true, Enqueued: enqueued, Closed: enqueued / 2,
			Queues: []operator.Queue{
				{Name: "mail", PausedSince: at, Jobs: map[outbox.Status]int64{outbox.Pending: 7}, OldestDue: at.Add(-3 * time.Hour)},
				{Name: "default", Jobs: map[outbox.Status]int64{outbox.Pending: 40, outbox.Dead: 2}, OldestDue: at.Add(-90 * time.Second)},
			},
			Recent: []operator.Recent{
				{Jobs: 9, Unsuccessful: 1, Since: at, WaitP99: 1500 * time.Microsecond, RunP99: 2345 * time.Millisecond},
				{Kind: "evil\x1b[2J", Jobs: 9},
			},
		},
		workers: []operator.Worker{{Listening: true}, {}, {Missing: true}},
		took:    12 * time.Millisecond,
	}
}

func TestAFrameSaysHowItGoes(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	sights := []sight{someSight(at, 100), someSight(at.Add(2*time.Second), 140)}
	var failure error
	w := &lookout{look: func(context.Context) (s sight, err error) {
		if failure != nil {
			return s, failure
		}
		s, sights = sights[0], sights[1:]
		return s, nil
	}}
	w.again(t.Context())
	if frame := w.frame(); !strings.Contains(frame, "rates       …") {
		t.Errorf("got\n%s\nwant no rates yet", frame)
	}
	w.again(t.Context())
	frame := w.frame()
	for _, want := range []string{
		"open        ~49: 47 pending, 2 dead",
		"oldest due  1m30s", // the older one's queue is paused
		"20.0 enqueued a second, 10.0 closed",
		"waited p50 0s p99 1.5ms, ran p50 0s p99 2.35s; the last 9 closed",
		"2 present, 1 of them not listening, 1 missing",
		"2 letters wait",
		"paused since",
		"evil [2J", // without the escape
	} {
		if !strings.Contains(frame, want) {
			t.Errorf("got\n%s\nwant %q in it", frame, want)
		}
	}
	if i, j := strings.Index(frame, "\ndefault"), strings.Index(frame, "\nmail"); i < 0 || j < i {
		t.Errorf("got\n%s\nwant the fuller queue first", frame)
	}
	failure = errors.New("connection refused")
	w.again(t.Context())
	if frame := w.frame(); !strings.HasPrefix(frame, "cannot look: connection refused\n") || !strings.Contains(frame, "2 letters wait") {
		t.Errorf("got\n%s\nwant the failure above what was seen before", frame)
	}
	if small := fit(frame, 20, 5); strings.Count(small, "\n") != 4 || !strings.HasSuffix(small, "more lines") {
		t.Errorf("got\n%s\nwant 5 lines", small)
	} else {
		for line := range strings.Lines(small) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 20 {
				t.Errorf("%q has %d columns, want at most 20", line, n)
			}
		}
	}
}

// A token of one tenant gets counts, and no more: nothing else is made up.
func TestAFrameOfCountsClaimsNothingElse(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	w := &lookout{look: func(context.Context) (sight, error) {
		at = at.Add(2 * time.Second)
		return sight{Overview: operator.Overview{AsOf: at, NoOldest: true}, cached: true, hidden: true}, nil
	}}
	for range 2 {
		w.again(t.Context())
	}
	for _, bad := range []string{"a second", "snapshot", "there"} {
		if frame := w.frame(); strings.Contains(frame, bad) {
			t.Errorf("got\n%s\nwithout knowing of %q", frame, bad)
		}
	}
}

func TestTheScreenFollowsKeysAndSizes(t *testing.T) {
	t.Parallel()
	w := &lookout{look: func(context.Context) (sight, error) { return someSight(time.Now(), 1), nil }}
	var m tea.Model = screen{ctx: t.Context(), watch: w, interval: time.Hour}
	m, _ = m.Update(m.Init()())
	m, _ = m.Update(tea.WindowSizeMsg{Width: 30, Height: 4})
	if v := m.View(); !v.AltScreen || strings.Count(v.Content, "\n") != 3 {
		t.Errorf("got %q, want 4 lines on the alternate screen", v.Content)
	}
	if _, cmd := m.Update(tea.KeyPressMsg{Code: 'x', Text: "x"}); cmd != nil {
		t.Error("x does something")
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := m.Update(key)
		if cmd == nil {
			t.Errorf("%s does not quit", key)
		} else if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", key)
		}
	}
}

func TestStatsAndTopWithoutATerminal(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	ok(t, e, "enqueue", "greet")
	ok(t, e, "queues", "pause", "mail")
	out := ok(t, e, "stats", "-o", "csv")
	for _, want := range []string{"name,value\n", "open,1\n", "pending,1\n", "dead_letters,0\n", "paused_queues,1\n", "oldest_due_age_seconds,", "estimated,no\n", "as_of,"} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %q in it", out, want)
		}
	}
	if out := ok(t, e, "top"); strings.Count(out, "posthaste   ") != 1 || !strings.Contains(out, "open        1: 1 pending") || strings.Contains(out, "\x1b") {
		t.Errorf("got %q, want one plain frame", out)
	}
	if out := ok(t, e, "top", "-n", "2", "--interval", "100ms"); strings.Count(out, "posthaste   ") != 2 || !strings.Contains(out, "enqueued a second") {
		t.Errorf("got %q, want two frames, the second with rates", out)
	}
}
