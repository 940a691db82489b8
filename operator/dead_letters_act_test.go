package operator_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeDead stores n dead letters that failed a minute ago.
func storeDead(t *testing.T, db *pgxpool.Pool, n int) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, max_attempts, lost_leases, run_at, created_at, started_at,
			last_error_code, last_error_message, failed_at, error_fingerprint, unavailable_since)
		SELECT outbox.uuid_v7(), 'mail', '{}', 'dead', 7, 3, 3, 2, now() - interval '2 minutes', now() - interval '3 minutes', now() - interval '1 minute',
			'smtp', 'full', now() - interval '1 minute', 'f', now()
		FROM generate_series(1, $1)`, n)
	if err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM `+sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func TestManyAreReplayed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 1200)
	other := fail(t, db, "bill", outbox.Options{}, outbox.Dead, "gone", "gone")
	var steps []operator.BulkProgress
	if !woken(t, db, func() {
		for p, err := range o.As(operator.Actor{Name: "ada"}).Because("mended").ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{Kind: "mail"}, 0) {
			if err != nil {
				t.Error(err)
			}
			steps = append(steps, p)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	var done []int64
	for _, p := range steps {
		done = append(done, p.Done)
		if p.Matched != 1200 || p.Passed != 0 || p.FailedUntil.IsZero() {
			t.Errorf("progress = %+v", p)
		}
	}
	if !slices.Equal(done, []int64{0, 500, 1000, 1200}) {
		t.Errorf("replayed step by step = %v", done)
	}
	if got := count(t, db, `outbox.jobs WHERE kind = 'mail' AND status = 'pending' AND attempt = 0 AND lost_leases = 0 AND epoch = 8
		AND run_at < now() - interval '1 minute' AND failed_at IS NULL AND error_fingerprint IS NULL AND unavailable_since IS NULL`); got != 1200 {
		t.Errorf("jobs that are as new, at their old place in the queue = %d, want 1200", got)
	}
	if got := count(t, db, `outbox.audit WHERE act = 'job.replay' AND actor = 'ada' AND reason = 'mended' AND before ->> 'status' = 'dead' AND after ->> 'status' = 'pending'`); got != 1200 {
		t.Errorf("acts on record = %d, want 1200", got)
	}
	if got := deadLetters(t, o, operator.DeadLetterFilter{}); !slices.Equal(got, []outbox.ID{other}) {
		t.Errorf("dead letters left = %v, want the other kind's", got)
	}
}

// The rate is kept by due times within a page and by waiting between pages, so the
// due times are what proves it, however slow the machine is.
func TestTheRateIsKept(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 35)
	started := time.Now()
	for p, err := range o.ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{}, 20) { // 20, then 15
		if err != nil {
			t.Fatal(err)
		}
		if p.Done == 35 && time.Since(started) < time.Second {
			t.Errorf("the second page came after %s, want a second", time.Since(started))
		}
	}
	var closest, span time.Duration
	var inOrder bool
	err := db.QueryRow(t.Context(), `
		SELECT min(gap), max(run_at) - min(run_at), bool_and(in_order) FROM (
			SELECT run_at, run_at - lag(run_at) OVER (ORDER BY run_at) AS gap, id > lag(id) OVER (ORDER BY run_at) IS NOT FALSE AS in_order FROM outbox.jobs
		) AS due`).Scan(&closest, &span, &inOrder)
	if err != nil || closest < 49*time.Millisecond || !inOrder {
		t.Errorf("the closest starts are %s apart, in order %t, %v; want 50ms, true", closest, inOrder, err)
	}
	if span < 34*50*time.Millisecond-time.Millisecond {
		t.Errorf("35 jobs become due within %s, want 1.7s", span)
	}
}

// A replay breaks off, half of what it replayed fails again, and it is begun again
// with what it said of its beginning: each dead letter of the beginning is replayed
// once.
func TestAReplayThatWasBrokenOffGoesOn(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 700)
	var filter operator.DeadLetterFilter
	for p, err := range o.ReplayDeadLetters(t.Context(), filter, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Done > 0 {
			filter.FailedUntil = p.FailedUntil
			break
		}
	}
	again := 0
	for id, epoch := range claim(t, db, engine.DefaultQueue) {
		if !settle(t, db, id, epoch, outbox.Dead) {
			t.Fatal("the outcome was refused")
		}
		again++
	}
	for p, err := range o.ReplayDeadLetters(t.Context(), filter, 0) {
		if err != nil || p.Matched != 200 {
			t.Fatalf("the second time %+v, %v, want 200 matched", p, err)
		}
	}
	if got := count(t, db, `outbox.jobs WHERE status = 'dead'`); got != again || again == 0 {
		t.Errorf("dead letters = %d, want the %d that failed again", got, again)
	}
	if got := count(t, db, `(SELECT job_id FROM outbox.audit GROUP BY job_id HAVING count(*) = 1) AS once`); got != 700 {
		t.Errorf("jobs replayed once = %d, want 700", got)
	}
}

// What fails from now on is not meant, whatever the caller's clock says.
func TestAReplayIsBoundedByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 1)
	for p, err := range o.ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{FailedUntil: time.Now().Add(time.Hour)}, 0) {
		if err != nil || p.FailedUntil.After(time.Now().Add(time.Minute)) {
			t.Errorf("progress = %+v, %v, want a bound of now", p, err)
		}
	}
}

func TestTwoReplaysAtOnceShareTheWork(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 3000)
	var done, passed [2]int64
	var both sync.WaitGroup
	for i := range done {
		both.Go(func() {
			for p, err := range o.ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{}, 0) {
				if err != nil {
					t.Error(err)
				}
				done[i], passed[i] = p.Done, p.Passed
			}
		})
	}
	both.Wait()
	if done[0]+done[1] != 3000 || count(t, db, `outbox.jobs WHERE status = 'pending' AND epoch = 8`) != 3000 || count(t, db, `outbox.audit`) != 3000 {
		t.Errorf("replayed %v, passed over %v: want 3000 together, each once", done, passed)
	}
}

// Between the look and the act somebody retries the job, and it fails again: same
// status, another epoch.
func TestWhatChangedMeanwhileIsPassedOver(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 2)
	first := deadLetters(t, o, operator.DeadLetterFilter{})[1]
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `UPDATE outbox.jobs SET epoch = epoch + 1 WHERE id = $1`, first); err != nil {
		t.Fatal(err)
	}
	ended := make(chan operator.BulkProgress, 1)
	go func() {
		var last operator.BulkProgress
		for p, err := range o.DismissDeadLetters(t.Context(), operator.DeadLetterFilter{}) {
			if err != nil {
				t.Error(err)
			}
			last = p
		}
		ended <- last
	}()
	for count(t, db, `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DismissJobs%'`) == 0 {
		select {
		case <-ended:
			t.Fatal("it did not wait for the row")
		case <-time.After(time.Millisecond):
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := <-ended; p.Done != 1 || p.Passed != 1 {
		t.Errorf("progress = %+v, want one done and one passed over", p)
	}
	if got := deadLetters(t, o, operator.DeadLetterFilter{}); !slices.Equal(got, []outbox.ID{first}) {
		t.Errorf("dead letters left = %v, want %s", got, first)
	}
}

func TestManyAreDismissed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 600)
	for _, err := range o.Because("too late").DismissDeadLetters(t.Context(), operator.DeadLetterFilter{ErrorCode: "smtp"}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := count(t, db, `outbox.history WHERE status = 'dismissed' AND closed_from = 'dead' AND epoch = 8`); got != 600 {
		t.Errorf("dismissed = %d, want 600", got)
	}
	if got := count(t, db, `outbox.audit WHERE act = 'job.dismiss' AND reason = 'too late' AND before ->> 'error_code' = 'smtp'`); got != 600 {
		t.Errorf("acts on record = %d, want 600", got)
	}
}

func TestAnActOnManyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last operator.BulkProgress
	var failed error
	for p, err := range o.ReplayDeadLetters(ctx, operator.DeadLetterFilter{}, 0.01) {
		last, failed = p, err
		if p.Done == 1 {
			cancel()
		}
	}
	if last.Done != 1 || !errors.Is(failed, context.Canceled) {
		t.Errorf("it ended with %+v, %v; want one done and the context's error", last, failed)
	}
}

func TestBadRatesAndFiltersAreRefused(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 1)
	check := func(what string, err error) {
		t.Helper()
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%s: got %v, want an InvalidError", what, err)
		}
	}
	for _, rate := range []float64{-1, 1e-9, 1e6, math.NaN(), math.Inf(1)} {
		for _, err := range o.ReplayDeadLetters(t.Context(), operator.DeadLetterFilter{}, rate) {
			check(fmt.Sprint(rate), err)
		}
	}
	for _, err := range o.DismissDeadLetters(t.Context(), operator.DeadLetterFilter{Status: outbox.Pending}) {
		check("a status", err)
	}
	if got := count(t, db, `outbox.jobs WHERE status = 'dead'`); got != 1 {
		t.Error("something was acted on")
	}
}

func TestAPayloadIsEdited(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := fail(t, db, "mail", outbox.Options{}, outbox.Failed, "bad", "bad address")
	pending := enqueue(t, db, "mail", outbox.Options{Queue: "post"})

	for field, err := range map[string]error{
		"not JSON": o.ReplayEdited(t.Context(), id, []byte(`{"n":`)),
		"nothing":  o.ReplayEdited(t.Context(), id, nil),
		"too long": o.ReplayEdited(t.Context(), id, []byte(`"`+strings.Repeat("x", engine.MaxPayloadBytes)+`"`)),
	} {
		if invalid, ok := errors.AsType[*outbox.InvalidError](err); !ok || invalid.Field != "payload" {
			t.Errorf("%s: got %v, want an InvalidError of the payload", field, err)
		}
	}
	refused, ok := errors.AsType[*operator.StatusError](o.ReplayEdited(t.Context(), pending, []byte(`{}`)))
	if !ok || refused.Status != outbox.Pending {
		t.Errorf("of a pending job: got %v, want a StatusError", refused)
	}
	if err := o.ReplayEdited(t.Context(), outbox.NewID(), []byte(`{}`)); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("of no job: got %v, want %v", err, operator.ErrNotFound)
	}

	if !woken(t, db, func() {
		if err := o.As(operator.Actor{Name: "ada"}).ReplayEdited(t.Context(), id, []byte(`{"n":2}`)); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("the dispatchers were not woken")
	}
	if j := job(t, o, id); j.Status != outbox.Pending || string(j.Payload) != `{"n":2}` || j.Attempt != 0 {
		t.Errorf("the job is %s, attempt %d: %s", j.Status, j.Attempt, j.Payload)
	}
	if e := audit(t, o, operator.AuditFilter{JobID: id})[0]; field(t, e.Before, "payload_base64") != "<nil>" || e.PayloadBytes != 12 || field(t, e.Before, "status") != "failed" {
		t.Errorf("the payload is listed unasked: %d bytes in %s", e.PayloadBytes, e.Before)
	}
	e := audit(t, o, operator.AuditFilter{JobID: id, WithPayloads: true})[0]
	old, err := base64.StdEncoding.DecodeString(field(t, e.Before, "payload_base64"))
	if err != nil || string(old) != `{"n":1}` || e.Actor != "ada" || field(t, e.Before, "payload_sha256") == field(t, e.After, "payload_sha256") {
		t.Errorf("recorded as %+v, with the old payload %q, %v", e, old, err)
	}
}

// What a job remembers stays with it, unless it is to be forgotten; what another one does stays in any case.
func TestAnEditedReplayForgetsIfAsked(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	other := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	for _, job := range []outbox.ID{id, other} {
		exec(t, db, `INSERT INTO outbox.progress (job_id, epoch, revision, current, reported_at, checkpoint, checkpoint_epoch, checkpointed_at)
			VALUES ($1, 1, 1, 7, now(), '"here"', 1, now())`, job)
		exec(t, db, `INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) SELECT $1, name, 1, '1 s', '1' FROM unnest('{quote,charge}'::text[]) AS name`, job)
	}
	remembers := func(when string, id outbox.ID, want bool) {
		t.Helper()
		steps, err := o.Steps(t.Context(), id)
		at, err2 := o.Checkpoint(t.Context(), id)
		if err = errors.Join(err, err2); err != nil || (len(steps) == 2) != want || (len(steps) == 0) == want || (at.Data != nil) != want {
			t.Errorf("%s it has %d steps and the checkpoint %q, %v; want them: %t", when, len(steps), at.Data, err, want)
		}
	}
	if err := o.ReplayEdited(t.Context(), id, []byte(`{"n":2}`)); err != nil {
		t.Error(err)
	}
	remembers("after an edit", id, true)
	failAgain(t, db, engine.DefaultQueue, id, outbox.Dead, "bad", "bad address")
	if err := o.Forgetting().WouldReplayEdited(t.Context(), id, []byte(`{"n":3}`)); err != nil {
		t.Error(err)
	}
	remembers("after a try", id, true)
	if err := o.Forgetting().ReplayEdited(t.Context(), id, []byte(`{"n":3}`)); err != nil {
		t.Error(err)
	}
	remembers("after it was asked to forget", id, false)
	remembers("the other one:", other, true)
	if p, err := o.Progress(t.Context(), id); err != nil || p.Current != 7 {
		t.Errorf("its progress is %+v, %v; want it kept", p, err)
	}
	acts := audit(t, o, operator.AuditFilter{JobID: id})
	if got := field(t, acts[0].After, "forgotten_steps") + field(t, acts[0].After, "forgotten_checkpoint") + field(t, acts[1].After, "forgotten_steps"); got != "2true<nil>" {
		t.Errorf("the audit has %s of what was forgotten and of what was not", got)
	}
}

// strict takes payloads of one kind that are as they were.
type strict struct{ kind string }

func (s strict) Check(kind string, payload outbox.Content) error {
	if kind == s.kind && payload.Type == "application/json" && string(payload.Bytes) != `{"n":1}` {
		return errors.Join(&outbox.InvalidError{Field: "Args/n", Reason: "is not 1"}, &outbox.InvalidError{Field: "Args/m", Reason: "is missing"})
	}
	return nil
}

func TestAnEditedPayloadIsHeldAgainstItsKind(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	err := o.CheckedBy(strict{"mail"}).As(operator.Actor{Name: "ada"}).ReplayEdited(t.Context(), id, []byte(`{"n":2}`))
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); !ok || invalid.Field != "Args/n" || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("got %v, want both mistakes", err)
	}
	if j := job(t, o, id); j.Status != outbox.Dead || string(j.Payload) != `{"n":1}` {
		t.Errorf("after the refusal the job is %s: %s", j.Status, j.Payload)
	}
	if err := o.CheckedBy(strict{"other"}).ReplayEdited(t.Context(), id, []byte(`{"n":2}`)); err != nil {
		t.Errorf("the checker has nothing against it: got %v", err)
	}
}

// It was replayed by somebody else since a person saw it, and died again.
func TestAnEditedReplayMeansAnEpoch(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	seen := job(t, o, id).Epoch
	exec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 2 WHERE id = $1`, id)
	payload := []byte(`{"n":2}`)
	for name, err := range map[string]error{
		"done": o.AtEpoch(seen).ReplayEdited(t.Context(), id, payload), "tried": o.AtEpoch(seen).WouldReplayEdited(t.Context(), id, payload),
	} {
		if found, ok := errors.AsType[*operator.StatusError](err); !ok || found.Status != outbox.Dead {
			t.Errorf("%s: got %v, want a StatusError", name, err)
		}
	}
	if err := o.AtEpoch(seen+2).ReplayEdited(t.Context(), id, payload); err != nil {
		t.Error(err)
	}
}

// A dry run finds whatever a replay would, and leaves everything as it is.
func TestAnEditedReplayIsTried(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	late := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "bad", "bad address")
	exec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second' WHERE id = $1`, late)
	waiting := enqueue(t, db, "mail", outbox.Options{})
	payload := []byte(`{"n":2}`)
	for name, err := range map[string]error{
		"of another kind": o.CheckedBy(strict{"mail"}).WouldReplayEdited(t.Context(), id, payload),
		"not JSON":        o.WouldReplayEdited(t.Context(), id, []byte(`{`)),
	} {
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	if err := o.WouldReplayEdited(t.Context(), outbox.NewID(), payload); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("of no job: %v", err)
	}
	if err := o.WouldReplayEdited(t.Context(), late, payload); !errors.Is(err, operator.ErrPastDeadline) {
		t.Errorf("past its deadline: %v", err)
	}
	if _, ok := errors.AsType[*operator.StatusError](o.WouldReplayEdited(t.Context(), waiting, payload)); !ok {
		t.Error("a job that waits would be replayed")
	}
	if woken(t, db, func() {
		if err := o.WouldReplayEdited(t.Context(), id, payload); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("the dispatchers were woken")
	}
	if j := job(t, o, id); j.Status != outbox.Dead || string(j.Payload) != `{"n":1}` || len(audit(t, o, operator.AuditFilter{})) != 0 {
		t.Errorf("a try has left it %s with %s, and %d acts", j.Status, j.Payload, len(audit(t, o, operator.AuditFilter{})))
	}
	api := operator.New(pgtest.Login(t, db, "outbox_api"))
	if err := api.WouldReplayEdited(operator.WithTenant(t.Context(), outbox.RootTenant), id, payload); err == nil {
		t.Error("a login that may not change payloads would")
	}
}

func TestALargePayloadIsNotKeptByTheAudit(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "mail", Payload: bytes.Repeat([]byte{0}, 100_000), ContentType: "application/octet-stream"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	failAgain(t, db, engine.DefaultQueue, id, outbox.Dead, "bad", "bad")
	if err := o.ReplayEdited(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	e := audit(t, o, operator.AuditFilter{JobID: id})[0]
	if got := field(t, e.Before, "payload_bytes") + field(t, e.Before, "payload_base64") + field(t, e.After, "payload_bytes"); got != "100000<nil>0" {
		t.Errorf("recorded %s of the payloads, want their lengths alone", got)
	}
}

// Payloads move with what is dismissed: of large ones fewer at a time.
func TestLargeDeadLettersAreDismissedAFewAtATime(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 12)
	// Compressed they take no room: it is their size that counts.
	if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET payload = convert_to(to_jsonb(repeat('x', 4000000))::text, 'UTF8')`); err != nil {
		t.Fatal(err)
	}
	var done []int64
	for p, err := range o.DismissDeadLetters(t.Context(), operator.DeadLetterFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, p.Done)
	}
	if want := []int64{0, 4, 8, 12}; !slices.Equal(done, want) {
		t.Errorf("dismissed %v, want %v", done, want)
	}
}

// An act after a count acts on no more than was counted.
func TestMatchedDeadLettersBoundTheAct(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	fail(t, db, "mail", outbox.Options{}, outbox.Dead, "smtp", "no")
	fail(t, db, "bill", outbox.Options{}, outbox.Dead, "smtp", "no")
	f := operator.DeadLetterFilter{Kind: "mail"}
	matched, err := o.MatchDeadLetters(t.Context(), f)
	if err != nil || matched.Matched != 1 || matched.FailedUntil.IsZero() {
		t.Fatalf("matched %+v, %v, want one and of when that is", matched, err)
	}
	later := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "smtp", "no")
	f.FailedUntil = matched.FailedUntil
	var done operator.BulkProgress
	for done, err = range o.DismissDeadLetters(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if left := deadLetters(t, o, operator.DeadLetterFilter{Kind: "mail"}); done.Done != 1 || len(left) != 1 || left[0] != later {
		t.Errorf("done %+v, left %v, want %s", done, left, later)
	}
	early := operator.DeadLetterFilter{FailedUntil: matched.FailedUntil.Add(-time.Hour)}
	if matched, err := o.MatchDeadLetters(t.Context(), early); err != nil || matched.Matched != 0 || !matched.FailedUntil.Equal(early.FailedUntil) {
		t.Errorf("with an earlier bound: %+v, %v", matched, err)
	}
}

// A settlement that is under way when dead letters are counted is counted with them.
func TestMatchedDeadLettersIncludeThoseOfASettlementUnderWay(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 1)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	exec(t, tx, `INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, failed_at) VALUES (outbox.uuid_v7(), 'mail', '{}', 'dead', 2, 1, statement_timestamp())`)
	type answer struct {
		matched operator.BulkProgress
		err     error
	}
	counted := make(chan answer, 1)
	go func() {
		matched, err := o.MatchDeadLetters(t.Context(), operator.DeadLetterFilter{})
		counted <- answer{matched, err}
	}()
	time.Sleep(100 * time.Millisecond) // well within what it waits, and enough to count without waiting
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-counted; a.err != nil || a.matched.Matched != 2 {
		t.Errorf("matched %+v, %v, want both", a.matched, a.err)
	}
	// One that takes long keeps nobody waiting.
	if tx, err = db.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `INSERT INTO outbox.queues (queue) VALUES ('long')`)
	if matched, err := o.MatchDeadLetters(t.Context(), operator.DeadLetterFilter{}); err != nil || matched.Matched != 2 {
		t.Errorf("beside a transaction that does not end: %+v, %v, want 2", matched, err)
	}
}

// A session shows the id of its transaction before it holds the lock of that id. Whether a transaction has ended, its
// lock alone does not tell: here, nobody sees it.
func TestATransactionWithoutItsLockHasNotEnded(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	exec(t, db, `CREATE SCHEMA before`)
	exec(t, db, `CREATE VIEW before.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE locktype <> 'transactionid'`)
	config := db.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "before, pg_catalog"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	exec(t, tx, `INSERT INTO outbox.queues (queue) VALUES ('mail')`)
	if matched, err := operator.New(pool).MatchDeadLetters(t.Context(), operator.DeadLetterFilter{}); err != nil || !matched.Unsettled {
		t.Errorf("beside a transaction that is writing: %+v, %v; want it unsettled", matched, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if matched, err := operator.New(pool).MatchDeadLetters(t.Context(), operator.DeadLetterFilter{}); err != nil || matched.Unsettled {
		t.Errorf("after it has ended: %+v, %v", matched, err)
	}
}

// However many there are, each statement looks at some of them.
func TestDeadLettersAreCountedInParts(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 2*operator.LettersAtOnce+1)
	exec(t, db, `UPDATE outbox.jobs SET kind = 'bill' WHERE id IN ((SELECT min(id::text)::uuid FROM outbox.jobs), (SELECT max(id::text)::uuid FROM outbox.jobs))`)
	for _, c := range []struct {
		f    operator.DeadLetterFilter
		want int64
	}{
		{operator.DeadLetterFilter{}, 2*operator.LettersAtOnce + 1},
		{operator.DeadLetterFilter{Kind: "bill"}, 2},
		{operator.DeadLetterFilter{Key: "none"}, 0},
		{operator.DeadLetterFilter{CreatedUntil: time.Now().Add(-24 * time.Hour)}, 0},
		{operator.DeadLetterFilter{CreatedSince: time.Now().Add(24 * time.Hour)}, 0},
	} {
		if n, err := o.CountDeadLetters(t.Context(), c.f); err != nil || n != c.want {
			t.Errorf("%+v: %d, %v, want %d", c.f, n, err, c.want)
		}
	}
}

// An act on the oldest of many dead letters looks at some of them in each statement, and so comes to an end; and at no
// more than it acts on, if all match.
func TestActsOnDeadLettersFindThemInParts(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeDead(t, db, 2*operator.LettersAtOnce+1)
	exec(t, db, `UPDATE outbox.jobs SET kind = 'bill' WHERE id = (SELECT min(id::text)::uuid FROM outbox.jobs)`)
	exec(t, db, `ANALYZE outbox.jobs`)
	bills := operator.DeadLetterFilter{Kind: "bill"}

	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, Filter: bills})
	if err != nil || op.Matched != 1 {
		t.Fatalf("started %+v, %v; want one matched", op, err)
	}
	var steps []string
	run(t, o, o, op.ID, func(op operator.Operation) bool {
		steps = append(steps, fmt.Sprint(op.Done, op.Passed, finished(op)))
		return finished(op)
	})
	if want := []string{"1 0 false", "1 0 false", "1 0 true"}; !slices.Equal(steps, want) {
		t.Errorf("done, passed and finished after each step of the operation: %q, want %q", steps, want)
	}

	steps = nil
	for p, err := range o.DismissDeadLetters(t.Context(), bills) {
		steps = append(steps, fmt.Sprint(p.Done, p.Passed, !p.Last.IsZero(), err))
	}
	if want := []string{"0 0 false <nil>", "0 0 true <nil>"}; !slices.Equal(steps, want) {
		t.Errorf("progress of an act on none: %q, want %q", steps, want)
	}

	var plans []string
	for p, err := range o.Planned(&plans).DismissDeadLetters(t.Context(), operator.DeadLetterFilter{After: outbox.ID{15: 1}}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Done > 0 {
			break
		}
	}
	if plan := plans[len(plans)-1]; !regexp.MustCompile(`jobs_dead_letter_idx on jobs .*actual rows=50[01] `).MatchString(plan) {
		t.Errorf("the first 500 are found so:\n%s", plan)
	}
}
