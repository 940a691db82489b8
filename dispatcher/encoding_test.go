package dispatcher_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A failure whose text the database's encoding lacks is stored all the same, together with the job's reports: in ASCII
// where there is no other way.
func TestFailuresAreStoredInEveryEncoding(t *testing.T) {
	t.Parallel()
	const text, inASCII = "caf\u00e9 \u2603", `caf\u00e9 \u2603`
	for encoding, want := range map[string]string{"LATIN1": inASCII, "SQL_ASCII": text} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := pgtest.NewEncoded(t, encoding)
			var mux dispatcher.Mux
			mux.HandleRaw("fails", func(context.Context, *outbox.Claimed) error { return errors.New(text) })
			mux.HandleRaw("panics", func(context.Context, *outbox.Claimed) error { panic(text) })
			mux.HandleRaw("is.away", func(context.Context, *outbox.Claimed) error {
				return dispatcher.TargetUnavailable(errors.New(text), time.Hour)
			})
			mux.HandleRaw("reports", func(ctx context.Context, job *outbox.Claimed) error {
				return errors.Join(job.Progress(ctx, 1, 2, text), job.Log(ctx, slog.LevelInfo, text))
			})
			for _, kind := range mux.Kinds() {
				enqueue(t, db, outbox.Raw{KindName: kind, Payload: []byte(`{}`)}, outbox.Options{MaxAttempts: 1})
			}
			d := start(t, db, &mux, quiet(nil))
			await(t, db, "every outcome is stored", `SELECT NOT EXISTS (SELECT FROM outbox.jobs WHERE status = 'running' OR run_at < statement_timestamp() AND status <> 'dead')`)
			d.stop(t)

			for question, want := range map[string]string{
				`SELECT last_error_message FROM outbox.jobs WHERE kind = 'fails' AND status = 'dead'`:            want,
				`SELECT error_message FROM outbox.attempts JOIN outbox.jobs ON id = job_id WHERE kind = 'fails'`: want,
				`SELECT last_error_message FROM outbox.jobs WHERE kind = 'panics' AND status = 'dead'`:           "panic: " + want,
				`SELECT last_error_message FROM outbox.jobs WHERE kind = 'is.away' AND status = 'retrying'`:      want,
				`SELECT message FROM outbox.progress`:                                                            want,
				`SELECT message FROM outbox.job_logs`:                                                            want,
			} {
				if got := ask[string](t, db, question); got != want {
					t.Errorf("%s: %q, want %q", question, got, want)
				}
			}
			if n := strings.Count(d.log.complaints(), "settle failed"); n > 6 { // each with others, and by itself
				t.Errorf("%d complaints about three outcomes:\n%s", n, d.log.complaints())
			}
		})
	}
}

// An outcome that a trigger refuses does not delay the stop: nothing else is left to do, and waiting for the end of the
// grace period would help nobody.
func TestARefusedOutcomeDoesNotHoldUpTheStop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.status = 'retrying') EXECUTE FUNCTION refuse()`)
	enqueueProbes(t, db, 1, outbox.Options{})
	config := quiet(nil)
	config.GracePeriod = time.Hour
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return errors.New("fails") }), config)
	awaitThat(t, "the outcome is refused", func() bool { return strings.Contains(d.log.String(), "not today") })
	d.stop(t)
	if log := d.log.String(); !strings.Contains(log, "outcomes not stored: the jobs will run again") || strings.Contains(log, "cut off") {
		t.Errorf("the log does not say what becomes of the job:\n%s", log)
	}
}
