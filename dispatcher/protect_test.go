package dispatcher_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

type payOut struct{ IBAN string }

func (payOut) Kind() string { return "pay.out" }

// The database holds a sealed job unreadable, payload and result alike, however the job is completed; its handler and
// holders of the key read both.
func TestSealedJobsAreReadByWhoHasTheKey(t *testing.T) {
	t.Parallel()
	const iban = "DE02120300000000202051"
	ring, err := protect.NewKeyring(protect.Key{ID: "k", Secret: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, complete := range map[string]bool{"by returning": false, "by Complete": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var mux dispatcher.Mux
			mux.Use(dispatcher.Protect(ring))
			dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[payOut]) error {
				job.Result = []byte(`"paid to ` + job.Args.IBAN + `"`)
				if !complete {
					return nil
				}
				return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.Complete(ctx, tx) })
			})
			id := enqueue(t, db, payOut{iban}, outbox.Options{Protect: ring})
			if stored := ask[[]byte](t, db, `SELECT payload FROM outbox.jobs`); bytes.Contains(stored, []byte(iban)) {
				t.Errorf("the payload is stored as %q", stored)
			}
			start(t, db, &mux, dispatcher.Config{})
			awaitSucceeded(t, db, 1)
			if readable := ask[bool](t, db, `SELECT position('`+iban+`'::bytea IN payload) + position('`+iban+`'::bytea IN result) > 0 FROM outbox.history`); readable {
				t.Error("the history can be read")
			}
			result, err := protect.OpenResult(t.Context(), ring, outbox.RootTenant, id, ask[[]byte](t, db, `SELECT result FROM outbox.history`))
			if err != nil || string(result) != `"paid to `+iban+`"` {
				t.Errorf("the result opens as %q, %v", result, err)
			}
		})
	}
}

// Without the key, or without Protect, a job waits for a better deployment.
func TestASealedJobWaitsForItsKey(t *testing.T) {
	t.Parallel()
	ring, _ := protect.NewKeyring(protect.Key{ID: "k", Secret: [32]byte{1}})
	other, _ := protect.NewKeyring(protect.Key{ID: "other", Secret: [32]byte{2}})
	for name, use := range map[string][]dispatcher.Middleware{"without Protect": nil, "with another key": {dispatcher.Protect(other)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var mux dispatcher.Mux
			mux.Use(use...)
			dispatcher.Handle(&mux, func(context.Context, *outbox.Job[payOut]) error {
				t.Error("the handler was called")
				return nil
			})
			enqueue(t, db, payOut{"x"}, outbox.Options{Protect: ring})
			start(t, db, &mux, dispatcher.Config{})
			await(t, db, "the first attempt to fail", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'retrying' AND last_error_code = 'unreadable_payload'`)
			if got := ask[string](t, db, `SELECT last_error_message FROM outbox.jobs`); strings.Contains(got, "IBAN") {
				t.Errorf("the message tells of the content: %s", got)
			}
		})
	}
}

type scan struct {
	outbox.Returns[int]
	Pages string
}

func (scan) Kind() string { return "scan.read" }

// A claim check moves the large payload and leaves the small result alone. The result is then no secret: everybody
// reads it, including the hook.
func TestAResultThatTheProtectorLeavesAloneIsStoredAsItIs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	folder, err := protect.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	checks := &protect.ClaimCheck{Store: folder, Above: 100}
	heard := make(chan int, 1)
	var mux dispatcher.Mux
	mux.Use(dispatcher.Protect(checks))
	dispatcher.HandleResult(&mux, func(_ context.Context, job *outbox.Job[scan]) (int, error) { return len(job.Args.Pages), nil })
	dispatcher.OnResult(&mux, func(_ context.Context, _ *outbox.Job[dispatcher.Ended[scan]], n int) error {
		heard <- n
		return nil
	})
	id := enqueue(t, db, scan{Pages: strings.Repeat("page ", 100)}, outbox.Options{Protect: checks})
	if stored := ask[string](t, db, `SELECT content_type FROM outbox.jobs`); stored != protect.ClaimCheckType {
		t.Fatalf("the payload is stored as %s: this proves nothing", stored)
	}
	start(t, db, &mux, quiet(nil))
	if n := receive(t, heard, "the hook"); n != 500 {
		t.Errorf("the hook is told of %d, want 500", n)
	}
	stored := ask[[]byte](t, db, `SELECT result FROM outbox.history WHERE id = $1`, id)
	opened, err := protect.OpenResult(t.Context(), checks, outbox.RootTenant, id, stored)
	if string(stored) != "500" || string(opened) != "500" || err != nil {
		t.Errorf("the result is stored as %q and opens as %q, %v", stored, opened, err)
	}
}

// The hook of a job with a sealed result gets neither the result nor the arguments: a hook that needs the result fails
// for good, and the database has neither in the clear.
func TestAHookDoesNotGetWhatIsSealed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ring, err := protect.NewKeyring(protect.Key{ID: "k", Secret: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	var mux dispatcher.Mux
	mux.Use(dispatcher.Protect(ring))
	dispatcher.HandleResult(&mux, func(_ context.Context, job *outbox.Job[scan]) (int, error) { return 424242, nil })
	dispatcher.OnResult(&mux, func(_ context.Context, _ *outbox.Job[dispatcher.Ended[scan]], n int) error {
		t.Errorf("the hook is told of %d", n)
		return nil
	})
	enqueue(t, db, scan{Pages: "s3cret"}, outbox.Options{Protect: ring})
	start(t, db, &mux, quiet(nil))
	await(t, db, "the hook is given up", `SELECT count(*) = 1 FROM outbox.jobs WHERE kind = 'scan.read:on_success' AND status = 'failed' AND last_error_code = 'undecodable_result'`)
	if heard := ask[string](t, db, `SELECT convert_from(payload, 'UTF8') FROM outbox.jobs`); strings.Contains(heard, "s3cret") || strings.Contains(heard, "424242") {
		t.Errorf("the hook's job holds %s", heard)
	}
}
