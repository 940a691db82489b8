package lifecycle_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

// life returns the events of a job that fails once and is completed.
func life() []lifecycle.Event {
	job, at := outbox.NewID(), time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	e := func(n int, name lifecycle.Name, previous, state outbox.Status, epoch int64, attempt int) lifecycle.Event {
		return lifecycle.Event{
			Job: job, Tenant: outbox.RootTenant, N: n, Name: name, PreviousStatus: previous, Status: state, Epoch: epoch, Attempt: attempt,
			At: at.Add(time.Duration(n) * time.Second), Queue: "mail", Kind: "mail.send",
		}
	}
	all := []lifecycle.Event{
		e(1, lifecycle.Created, "", outbox.Pending, 0, 0),
		e(2, lifecycle.Started, outbox.Pending, outbox.Running, 1, 1),
		e(3, lifecycle.Retry, outbox.Running, outbox.Retrying, 2, 1),
		e(4, lifecycle.Started, outbox.Retrying, outbox.Running, 3, 2),
		e(5, lifecycle.Completed, outbox.Running, outbox.Succeeded, 3, 2),
	}
	all[0].Payload, all[0].ContentType, all[0].MaxAttempts = []byte(`{}`), "application/json", 25
	all[1].Worker, all[3].Worker = "w1", "w2"
	all[2].Error, all[2].RunAt = &lifecycle.Error{Code: "smtp_away", Message: "no answer"}, at
	all[4].Result = []byte(`{"id":7}`)
	return all
}

func reduce(t *testing.T, events ...lifecycle.Event) (s lifecycle.State) {
	t.Helper()
	for _, e := range events {
		var err error
		if s, err = lifecycle.Reduce(s, e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestReduceIsTheJob(t *testing.T) {
	events := life()
	at := events[0].At.Add(-time.Second)
	want := lifecycle.State{
		Job: events[0].Job, Tenant: outbox.RootTenant, N: 5, Status: outbox.Succeeded, Epoch: 3, Queue: "mail", Kind: "mail.send",
		Attempt: 2, MaxAttempts: 25, Payload: []byte(`{}`), ContentType: "application/json", Result: []byte(`{"id":7}`), Worker: "w2",
		Error: lifecycle.Error{Code: "smtp_away", Message: "no answer"}, CreatedAt: at.Add(time.Second), RunAt: at,
		StartedAt: at.Add(4 * time.Second), FinishedAt: at.Add(5 * time.Second),
	}
	if got := reduce(t, events...); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A message may come twice, and a consumer may begin again from an older one.
func TestReduceIgnoresRepeats(t *testing.T) {
	events := life()
	want := reduce(t, events...)
	for from := range events {
		for to := from; to <= len(events); to++ {
			repeated := append(append([]lifecycle.Event{}, events[:to]...), events[from:]...)
			if got := reduce(t, repeated...); !reflect.DeepEqual(got, want) {
				t.Errorf("events to %d and again from %d make %+v, want %+v", to, from+1, got, want)
			}
		}
	}
}

func TestReduceReportsGaps(t *testing.T) {
	events := life()
	s, err := lifecycle.Reduce(reduce(t, events[:2]...), events[3])
	if !errors.Is(err, lifecycle.ErrGap) {
		t.Errorf("event 4 after event 2: %v, want a gap", err)
	}
	if s.N != 4 || s.Status != outbox.Running || s.Worker != "w2" || s.Error.Code != "" {
		t.Errorf("after the gap the state is %+v, want that of event 4", s)
	}
	says := events[3]
	says.N, says.Name, says.PreviousStatus = 5, lifecycle.Progressed, outbox.Running
	if s, err := lifecycle.Reduce(lifecycle.State{}, says); !errors.Is(err, lifecycle.ErrGap) || s.Queue != "mail" || s.Kind != "mail.send" || s.Attempt != 2 {
		t.Errorf("progress as the first: %v and %+v, want a gap, and what the event says", err, s)
	}
	if _, err := lifecycle.Reduce(lifecycle.State{}, events[1]); !errors.Is(err, lifecycle.ErrGap) {
		t.Errorf("event 2 as the first: %v, want a gap", err)
	}
}

func TestReduceRefusesWhatCannotBe(t *testing.T) {
	events, others := life(), life()
	closed := reduce(t, events...)
	of := func(e lifecycle.Event, n int, epoch int64) lifecycle.Event { e.N, e.Epoch = n, epoch; return e }
	afterwards := events[1]
	afterwards.N, afterwards.PreviousStatus = 6, outbox.Succeeded
	for name, c := range map[string]struct {
		state lifecycle.State
		event lifecycle.Event
	}{
		"another job":             {reduce(t, events[:2]...), others[2]},
		"another state before it": {reduce(t, events[:3]...), func() lifecycle.Event { e := events[3]; e.PreviousStatus = outbox.Pending; return e }()},
		"a closed job starts":     {closed, afterwards},
		// A failover has lost the last two events, and the next is the last.
		"another life, with the number of the last one": {reduce(t, events[:3]...), of(events[4], 3, 1)},
		"another epoch with the number of the last one": {reduce(t, events[:4]...), of(events[3], 4, 1)},
		"another life that has ended":                   {reduce(t, events[:4]...), of(events[4], 3, 1)},
	} {
		s, err := lifecycle.Reduce(c.state, c.event)
		if !errors.Is(err, lifecycle.ErrConflict) || !reflect.DeepEqual(s, c.state) {
			t.Errorf("%s: %v, %+v; want a conflict, and the state before", name, err, s)
		}
	}
}

// A payload that is left out is not the one that there was before.
func TestReduceForgetsAPayloadThatWasReplaced(t *testing.T) {
	first := life()[0]
	large := first
	large.N, large.Name, large.PreviousStatus, large.Payload, large.ContentType, large.PayloadBytes = 2, lifecycle.Retried, outbox.Pending, nil, "text/plain", 4<<20
	if s := reduce(t, first, large); s.Payload != nil || s.ContentType != "text/plain" {
		t.Errorf("the payload is %q of %s, want none", s.Payload, s.ContentType)
	}
}
