package listener_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/listener"
)

func TestSignalCoalesces(t *testing.T) {
	s := listener.NewSignal()
	got := []bool{s.Set(), s.Set(), s.Set()}
	<-s
	if diff := cmp.Diff([]bool{true, false, false, true}, append(got, s.Set())); diff != "" {
		t.Errorf("Set reported (-want +got):\n%s", diff)
	}
}

// quiet has one canary only, at the beginning: no late one makes the listener connect anew, and wake.
func quiet(_ *rig, cfg *listener.Config) { cfg.CanaryInterval = time.Minute }

func TestNotificationWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, quiet)
	r.startHearing(t)
	for range 10 {
		r.notify(t)
		r.awaitWake(t)
	}
	if got, want := r.metric(t, "job_notification_received_total"), 10.0; got != want {
		t.Errorf("notifications received = %v, want %v", got, want)
	}
}

func TestAPayloadSetsItsOwnSignal(t *testing.T) {
	t.Parallel()
	mine := listener.NewSignal()
	r := newRig(t, func(r *rig, cfg *listener.Config) {
		quiet(r, cfg)
		cfg.ByPayload = map[string]listener.Signal{"mine": mine}
	})
	r.startHearing(t)
	<-mine // it may have missed one before it listened
	r.notify(t)
	r.awaitWake(t)
	select {
	case <-mine:
		t.Error("a notification without the payload has set its signal")
	default:
	}
	r.exec(t, "NOTIFY "+channel+", 'mine'")
	r.awaitWake(t)
	select {
	case <-mine:
	case <-time.After(time.Minute):
		t.Error("a notification with the payload has not set its signal")
	}
}

func TestCanariesWakeNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, cfg *listener.Config) { cfg.CanaryInterval = 100 * time.Millisecond })
	r.startHearing(t)
	await(t, "three canaries came back", func() bool { return r.metric(t, "outbox_listener_canary_seconds") >= 3 })
	select {
	case <-r.wake:
		t.Error("a canary woke us")
	default:
	}
	if got := r.metric(t, "job_notification_received_total"); got != 0 {
		t.Errorf("notifications received = %v, want 0", got)
	}
}

func TestThousandNotificationsAreOneWakeUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, quiet)
	r.startHearing(t)
	r.flood(t, 1000)
	r.awaitWake(t)
	select {
	case <-r.wake:
		t.Error("a second wake-up came")
	default:
	}
	if got, want := r.metric(t, "outbox_listener_wakeups_coalesced_total"), 999.0; got != want {
		t.Errorf("wake-ups coalesced = %v, want %v", got, want)
	}
}

// A listener that stops reading pins vacuum for the whole database. The server
// shows it as waiting to write to its client.
func TestNobodyReadsTheSignalAndTheConnectionIsStillRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, quiet)
	r.startHearing(t)
	for range 5 {
		r.flood(t, 10_000)
	}
	var pinned int
	err := r.pool.QueryRow(t.Context(), `
		SELECT count(*)
		FROM pg_stat_activity
		WHERE datname = current_database()
		  AND application_name = $1
		  AND (wait_event = 'ClientWrite' OR backend_xmin IS NOT NULL)`, app+"-listener").Scan(&pinned)
	if err != nil {
		t.Fatalf("look at the listener's backend: %v", err)
	}
	if pinned != 0 {
		t.Errorf("%d listeners pin vacuum, want none", pinned)
	}
	await(t, "the listener still hears", r.Listening)
}

// flood sends n notifications, which Postgres cannot fold into one, and waits
// until they have arrived.
func (r *rig) flood(t *testing.T, n int) {
	t.Helper()
	const received = "job_notification_received_total"
	want := r.metric(t, received) + float64(n)
	r.exec(t, "SELECT pg_notify($1, i::text) FROM generate_series(1, $2::int) AS i", channel, n)
	await(t, "the notifications have arrived", func() bool { return r.metric(t, received) >= want })
}

// Each receiver has a signal of its own: one that does not receive takes nothing
// from the others.
func TestEverySignalIsSet(t *testing.T) {
	t.Parallel()
	also := []listener.Signal{listener.NewSignal(), listener.NewSignal()}
	r := newRig(t, func(r *rig, cfg *listener.Config) {
		quiet(r, cfg)
		cfg.AlsoWake = also
	})
	r.startHearing(t)
	for _, signal := range also {
		<-signal // that it may have missed something
	}
	r.notify(t)
	r.awaitWake(t)
	for _, signal := range also {
		<-signal
	}
	if _, err := listener.New("postgres://localhost/x", "c", listener.NewSignal(), listener.Config{AlsoWake: make([]listener.Signal, 1)}); err == nil {
		t.Error("a signal without a slot was taken")
	}
}
