package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// BulkProgress is the progress of an act on many dead letters.
type BulkProgress struct {
	Matched int64 // dead letters that matched at the beginning; not counted when it continues with After
	Done    int64 // replayed or dismissed so far
	Passed  int64 // skipped, because something else happened to them meanwhile
	// Last is the id up to which dead letters were examined, of one of them or between two; zero before the first. With
	// it as After in the filter, the act continues behind it.
	Last outbox.ID
	// FailedUntil limits the act: jobs that become dead letters from then on are not touched. With it in the filter, an
	// interrupted act can be started again without replaying a second time what it had replayed and what has failed
	// again.
	FailedUntil time.Time
	// Unsettled reports that a transaction that was writing at FailedUntil has not ended within half a second. If it
	// stores a dead letter that failed before, that is acted on, too, and is one more than Matched.
	Unsettled bool
}

// MinPerSecond and MaxPerSecond are the bounds of the rate, in jobs or events per second, to which an act may be
// limited.
const (
	MinPerSecond = 0.001 // a job in 17 minutes
	MaxPerSecond = 1e5
)

// validPerSecond refuses a rate out of these bounds; 0 means no limit.
func validPerSecond(field string, rate float64) error {
	if rate != 0 && !(rate >= MinPerSecond && rate <= MaxPerSecond) { // NaN is refused, too
		return invalid.Field(field, "is %v, want %v to %v, or 0 for no limit", rate, MinPerSecond, MaxPerSecond)
	}
	return nil
}

// timeOf returns how long n take at a rate; a century if it is longer, because a Duration ends after three.
func timeOf(n int64, rate float64) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	return time.Duration(min(float64(n)/rate*float64(time.Second), float64(century)))
}

const (
	actPage = 500 // jobs in a statement of an act on many
	// actBytes limits their payloads, which a dismissal moves, so that the statement finishes within its time limit.
	actBytes = 16 << 20
	// keptPayload is how much of a replaced payload an audit entry keeps, so that a mistake can be undone.
	keptPayload = 64 << 10
)

// ReplayDeadLetters makes the dead letters that match f pending again, oldest first, with all their attempts. With a
// rate above 0, at most that many become due per second, evenly spread, and it waits in between; stop it by leaving the
// loop or by ending ctx. It yields its progress once before it does anything and then after every statement, and
// finally an error if there is one. A statement reads up to 50 000 dead letters, and may find none that matches.
//
// Each statement is complete in itself: whenever the caller stops or dies, every job is either replayed and due within
// a second, or a dead letter as before. Two at once share the work. None replays a job twice: a job that fails again
// meanwhile stays a dead letter, see [BulkProgress].
func (o *Operator) ReplayDeadLetters(ctx context.Context, f DeadLetterFilter,
	rate float64,
) iter.Seq2[BulkProgress, error] {
	if err := validPerSecond("rate", rate); err != nil {
		return refused(err)
	}
	page, spacing := pace(rate)
	return o.actOnMany(ctx, f, page, spacing, o.replaySome(spacing))
}

// pace returns how many jobs one statement replays at a rate, and how far apart they become due.
func pace(rate float64) (page int, spacing time.Duration) {
	if rate == 0 {
		return actPage, 0
	}
	return max(1, min(actPage, int(rate))), time.Duration(float64(time.Second) / rate)
}

func (o *Operator) replaySome(spacing time.Duration) actOnSome {
	return func(ctx context.Context, ids []pgtype.UUID, epochs []int64) ([]pgtype.UUID, error) {
		done, err := o.db.ReplayJobs(ctx, sqlgen.ReplayJobsParams{
			Ids: ids, Epochs: epochs, Spacing: pgvalue.Interval(spacing),
			Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
		})
		if err != nil {
			return nil, fmt.Errorf("replay dead letters: %w", err)
		}
		return done, nil
	}
}

// DismissDeadLetters dismisses the dead letters that match f, oldest first: they move to the history. It can be
// continued and interrupted like [Operator.ReplayDeadLetters].
func (o *Operator) DismissDeadLetters(ctx context.Context, f DeadLetterFilter) iter.Seq2[BulkProgress, error] {
	return o.actOnMany(ctx, f, actPage, 0, o.dismissSome)
}

func (o *Operator) dismissSome(ctx context.Context, ids []pgtype.UUID, epochs []int64) ([]pgtype.UUID, error) {
	done, err := o.db.DismissJobs(ctx, sqlgen.DismissJobsParams{
		Ids: ids, Epochs: epochs, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	if err != nil {
		return nil, fmt.Errorf("dismiss dead letters: %w", err)
	}
	return done, nil
}

type actOnSome func(ctx context.Context, ids []pgtype.UUID, epochs []int64) (done []pgtype.UUID, err error)

// actOnMany goes through the dead letters from the oldest id to the newest, a page at a time, and waits spacing for
// each one that it has acted on.
func (o *Operator) actOnMany(ctx context.Context, f DeadLetterFilter, page int, spacing time.Duration,
	act actOnSome,
) iter.Seq2[BulkProgress, error] {
	if err := f.validate(); err != nil {
		return refused(err)
	}
	return func(yield func(BulkProgress, error) bool) {
		progress, err := o.begin(ctx, &f)
		if !yield(progress, err) || err != nil {
			return
		}
		params := f.params()
		params.MaxRows = int32(page)
		for {
			found, done, err := o.actOnPage(ctx, params, act)
			if err != nil {
				yield(progress, err)
				return
			}
			if !found.last.Valid {
				return
			}
			params.After, progress.Last = found.last, found.last.Bytes
			progress.Done += int64(done)
			progress.Passed += int64(found.n - done)
			if !yield(progress, nil) || !found.more {
				return
			}
			// Measured from the answer: however fast the next statement is, by the database's clock it begins that long
			// after this one.
			if err := backoff.Sleep(ctx, time.Duration(done)*spacing); err != nil {
				yield(progress, err)
				return
			}
		}
	}
}

func refused(err error) iter.Seq2[BulkProgress, error] {
	return func(yield func(BulkProgress, error) bool) { yield(BulkProgress{}, err) }
}

// MatchDeadLetters counts the dead letters that match f, in Matched, and returns in FailedUntil the moment of the
// count. With this FailedUntil in the filter, [Operator.ReplayDeadLetters] and [Operator.DismissDeadLetters] skip jobs
// that become dead letters later: a person who confirms a number of dead letters confirms no more.
func (o *Operator) MatchDeadLetters(ctx context.Context, f DeadLetterFilter) (BulkProgress, error) {
	f.After = outbox.ID{}
	return o.begin(ctx, &f)
}

// begin limits the filter by the database's time, so that jobs that fail from now on do not match, and counts those
// that do.
func (o *Operator) begin(ctx context.Context, f *DeadLetterFilter) (BulkProgress, error) {
	bound, cancel := bounded(ctx)
	defer cancel()
	now, err := o.db.ReadClock(bound)
	if err != nil {
		return BulkProgress{}, fmt.Errorf("read the database's clock: %w", err)
	}
	ended := true
	if f.FailedUntil.IsZero() || f.FailedUntil.After(now.Time) {
		f.FailedUntil = now.Time
		if _, ended, err = o.waitForWriters(bound); err != nil {
			return BulkProgress{}, err
		}
	}
	progress := BulkProgress{FailedUntil: f.FailedUntil, Unsettled: !ended}
	if f.After.IsZero() {
		progress.Matched, err = o.CountDeadLetters(ctx, *f)
	}
	return progress, err
}

// writersPatience is how long to wait for a settlement in progress.
const writersPatience = 500 * time.Millisecond

// waitForWriters waits for the transactions that were writing at the time since, but not for long, and reports whether
// all have ended:
//
//	worker    settles a failure: failed_at = 12:00:00.000
//	operator  counts what failed until 12:00:00.010: 53, and says yes
//	worker    COMMIT
//	operator  acts on what failed until 12:00:00.010: 54
//
// If a transaction takes longer than that, and settled something, its job is still the 54th.
func (o *Operator) waitForWriters(ctx context.Context) (since time.Time, ended bool, err error) {
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, forgetActivity); err != nil {
			return err
		}
		var writers []string
		err := tx.QueryRow(ctx, `SELECT statement_timestamp(), array_agg(id::text) FROM (`+writing+`) AS writer`).
			Scan(&since, &writers)
		ended = len(writers) == 0
		for until := time.Now().Add(writersPatience); err == nil && !ended && time.Now().Before(until); {
			if err = backoff.Sleep(ctx, 5*time.Millisecond); err == nil {
				err = tx.QueryRow(ctx, haveEnded, writers).Scan(&ended)
			}
		}
		return err
	})
	if err != nil {
		return since, false, fmt.Errorf("wait for settlements under way: %w", err)
	}
	return since, ended, nil
}

// writing selects the ids of the transactions of others in this database that have written something and not ended yet,
// except prepared ones. (A snapshot's xmax does not bound them: the newest may be above it.) Every login may see these
// columns of every session. It shows the moment of its first use in a transaction, unless forgetActivity comes before.
//
// Those of other databases do not matter, however long they take. A snapshot's xmin, and the locks of ids in pg_locks,
// do not tell them apart.
const (
	writing = `SELECT backend_xid AS id FROM pg_stat_activity
	WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()`
	forgetActivity = `SELECT pg_stat_clear_snapshot()`
	// haveEnded reports whether the transactions $1 have ended. A session shows the id of its transaction before it
	// holds the lock of that id, and no longer shows it once the transaction is prepared, which keeps the lock: so the
	// statement looks at the sessions anew, and then at the locks.
	haveEnded = `SELECT CASE
		WHEN pg_stat_clear_snapshot() IS NULL THEN NULL
		WHEN EXISTS (SELECT FROM pg_stat_activity WHERE backend_xid::text = ANY ($1)) THEN false
		ELSE NOT EXISTS (
			SELECT FROM pg_locks
			WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND transactionid::text = ANY ($1))
		END`
)

// pageOf is a page of matching dead letters.
type pageOf struct {
	n    int
	last pgtype.UUID // up to which all were examined, whether or not they match; NULL if none was
	more bool        // there may be others behind it
}

// findToActOn returns the first dead letters that match, up to a page. It makes rounds, each of which reads more than
// the one before, until it has read a certain number: if all match it reads no more than it returns, and if hardly any
// do it comes to an end all the same.
func findToActOn(ctx context.Context, db *sqlgen.Queries,
	params sqlgen.FindDeadLettersParams,
) (rows []sqlgen.FindDeadLettersRow, page pageOf, err error) {
	full, end := int(params.MaxRows), params.Before
	for left, step := lettersAtOnce, actPage; ; step *= 2 {
		step = min(step, left)
		left -= step
		reach, err := findReachAbove(ctx, db, params.After, end, step)
		if err != nil {
			return nil, page, err
		}
		if params.Before = end; reach.Valid {
			params.Before = reach
		}
		params.MaxRows = int32(full - len(rows))
		some, err := db.FindDeadLetters(ctx, params)
		if err != nil {
			return nil, page, err
		}
		rows = append(rows, some...)
		switch {
		case len(rows) == full:
			return rows, pageOf{last: rows[full-1].ID, more: true}, nil
		case reach.Valid && left == 0:
			return rows, pageOf{last: beneath(reach), more: true}, nil
		case reach.Valid:
			params.After = beneath(reach)
		case len(rows) > 0:
			return rows, pageOf{last: rows[len(rows)-1].ID}, nil
		default:
			return nil, page, nil
		}
	}
}

func (o *Operator) actOnPage(ctx context.Context, params sqlgen.FindDeadLettersParams,
	act actOnSome,
) (found pageOf, done int, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var rows []sqlgen.FindDeadLettersRow
	err = o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		rows, found, err = findToActOn(ctx, db, params)
		return err
	})
	if err != nil {
		return found, 0, fmt.Errorf("find dead letters: %w", tooMany(err))
	}
	ids, epochs := make([]pgtype.UUID, 0, len(rows)), make([]int64, 0, len(rows))
	bytes := 0
	for i, row := range rows {
		if bytes += int(row.PayloadBytes); bytes > actBytes && i > 0 {
			found.last, found.more = rows[i-1].ID, true
			break
		}
		ids, epochs = append(ids, row.ID), append(epochs, row.Epoch)
	}
	if found.n = len(ids); found.n == 0 {
		return found, 0, nil
	}
	acted, err := act(ctx, ids, epochs)
	return found, len(acted), err
}

// ReplayEdited makes a dead letter pending again with another payload. The payload must be JSON if the old one had to
// be, no larger than any other, and valid for the job's kind if the operator has its schema ([Operator.CheckedBy]);
// otherwise it is refused by [*outbox.InvalidError]s, joined. The audit identifies both payloads by hash and length and
// keeps the old one, up to 64 KiB. ReplayEdited returns a [*StatusError] for a job that is not, or no longer, a dead
// letter, and [ErrNotFound].
//
// The job's checkpoint and finished steps remain, although they belong to the old payload: a finished step does not run
// again, and the handler continues at its checkpoint. [Operator.Forgetting] drops both.
func (o *Operator) ReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error {
	return o.replayEdited(ctx, id, payload, o.db.ReplayEdited)
}

// WouldReplayEdited returns what [Operator.ReplayEdited] would, and changes nothing.
func (o *Operator) WouldReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error {
	return o.replayEdited(ctx, id, payload, o.tryReplayEdited)
}

// MayEditPayloads reports whether the pool's login may do what [Operator.ReplayEdited] does: a login that is a member
// of outbox_api and of no other role of Posthaste may not.
func (o *Operator) MayEditPayloads(ctx context.Context) (may bool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT has_column_privilege('outbox.jobs', 'payload', 'UPDATE')`).Scan(&may)
	})
	if err != nil {
		return false, fmt.Errorf("look whether payloads may be changed: %w", err)
	}
	return may, nil
}

var errTried = errors.New("only tried")

// tryReplayEdited makes the change and rolls it back, so that the database, its clock and the login's rights are all
// tested.
func (o *Operator) tryReplayEdited(ctx context.Context,
	params sqlgen.ReplayEditedParams,
) (moved []sqlgen.ReplayEditedRow, err error) {
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if moved, err = sqlgen.New(tx).ReplayEdited(ctx, params); err != nil {
			return err
		}
		return errTried
	})
	if errors.Is(err, errTried) {
		err = nil
	}
	return moved, err
}

type replayOne func(context.Context, sqlgen.ReplayEditedParams) ([]sqlgen.ReplayEditedRow, error)

func (o *Operator) replayEdited(ctx context.Context, id outbox.ID, payload []byte, replay replayOne) error {
	const act = "replay"
	job, err := o.jobTo(ctx, act, id)
	if err != nil {
		return err
	}
	if job.Status != outbox.Failed && job.Status != outbox.Dead || !o.mayActOn(job) {
		return &StatusError{ID: id, Status: job.Status, Act: act}
	}
	if err := o.acceptable(job, payload); err != nil {
		return err
	}
	if payload == nil {
		payload = []byte{} // which is not NULL
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	moved, err := replay(ctx, sqlgen.ReplayEditedParams{
		ID: pgvalue.UUID(id), Epoch: job.Epoch, Payload: payload, KeptBytes: keptPayload, Forget: o.forget,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("replay job %s: %w", id, err)
	case len(moved) == 0:
		return o.refuseEdited(ctx, job, act)
	}
	return nil
}

// acceptable returns what is wrong with a job's new payload.
func (o *Operator) acceptable(job Job, payload []byte) error {
	refuse := func(reason string) error { return &outbox.InvalidError{Field: "payload", Reason: reason} }
	switch {
	case len(payload) > engine.MaxPayloadBytes:
		return refuse(fmt.Sprintf("is %d bytes, want at most %d", len(payload), engine.MaxPayloadBytes))
	case strings.HasPrefix(job.ContentType, protect.SealedPrefix):
		return refuse("of this job is sealed (" + job.ContentType + "): enqueue the job again and dismiss this one")
	case job.ContentType == "application/json" && !json.Valid(payload):
		return refuse("is not JSON, as the job's content type says")
	case o.check == nil:
		return nil
	}
	return o.check.Check(job.Kind, outbox.Content{Type: job.ContentType, Bytes: payload})
}

// refuseEdited returns why a dead letter was not replayed. If it is unchanged since it was found, it is past its
// deadline, by the database's clock, which alone decides.
func (o *Operator) refuseEdited(ctx context.Context, found Job, act string) error {
	now, err := o.jobTo(ctx, act, found.ID)
	switch {
	case err != nil:
		return err
	case now.Status == found.Status && now.Epoch == found.Epoch && !now.Deadline.IsZero():
		return fmt.Errorf("%s job %s: %w", act, found.ID, ErrPastDeadline)
	}
	return &StatusError{ID: found.ID, Status: now.Status, Act: act}
}
