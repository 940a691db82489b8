package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// badInput returns the part of family H that tests what producers enqueue.
func badInput() []Row {
	return []Row{{
		Name: "H2", Title: "Unusual input",
		Fault: "unusual Unicode, NUL, lone surrogates, strings of 4 MiB, nesting 10,000 deep, the limits of every number and of time, through Go, outbox.enqueue and plain SQL", Tiers: both, run: oddInput,
		Workload: "each of them as payload, key, header, error message and result, between ordinary jobs; once (S: ten times)",
		Pass:     "refused with an error that says what is wrong, or stored and delivered byte for byte; no row stops a claim; no dispatcher errors",
	}}
}

// odd is a run of row H2.
type odd struct {
	*Run
	want    map[outbox.ID]string // the digest that a handler has to report
	names   map[outbox.ID]string
	strange []string // inputs that were neither clearly refused nor accepted
}

func oddInput(ctx context.Context, r *Run) error {
	o := &odd{Run: r, want: map[outbox.ID]string{}, names: map[outbox.ID]string{}}
	worker, err := r.Worker("w0", "VERIFY_CONCURRENCY=8")
	if err != nil {
		return err
	}
	for round := range r.Size(1, 10) {
		for _, enter := range []func(context.Context) error{o.byGo, o.inBatches, o.refusals, o.byFunction, o.bySQL} {
			// Plain jobs between the odd ones: an input that stops claims stops these, too.
			if err := r.place(ctx, repeated(20, probe.Task{Do: "effect"})...); err != nil {
				return err
			}
			if err := enter(ctx); err != nil {
				return err
			}
		}
		if err := r.place(ctx, repeated(20, probe.Task{Do: "effect"})...); err != nil {
			return err
		}
		if err := o.drain(ctx); err != nil { // check reports it
			o.strange = append(o.strange, err.Error())
			break
		}
		r.Progress("unusual input", round+1, r.Size(1, 10))
	}
	if err := r.stop(ctx, worker); err != nil {
		return err
	}
	return o.check(ctx, worker)
}

// drain waits until every job that is due is done.
func (o *odd) drain(ctx context.Context) error {
	return o.Await(ctx, time.Minute, "all due jobs to be done", func(ctx context.Context) (bool, error) {
		var open int
		err := o.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs
			WHERE kind LIKE 'verify.%' AND status IN ('pending', 'running', 'retrying') AND run_at < now() + interval '1 day'`).Scan(&open)
		return open == 0, err
	})
}

// expect notes the digest of what a handler must receive for the job.
func (o *odd) expect(id outbox.ID, q request) {
	payload := q.args.(outbox.Raw)
	o.expectDigest(id, q.name, probe.Digest(payload.Payload, cmp.Or(payload.ContentType, "application/json"),
		q.options.Key.Name, q.options.Headers))
}

func (o *odd) expectDigest(id outbox.ID, name, digest string) {
	o.want[id], o.names[id] = digest, name
	o.Count("unusual inputs accepted", 1)
}

func (o *odd) byGo(ctx context.Context) error {
	for _, q := range acceptable() {
		id, err := outbox.Enqueue(ctx, o.DB, q.args, q.options)
		if err != nil {
			o.strange = append(o.strange, fmt.Sprintf("%s: %v", q.name, err))
			continue
		}
		if _, again := o.want[id]; !again {
			o.expect(id, q)
		}
	}
	return nil
}

// inBatches takes both paths of EnqueueMany: COPY, and INSERT when there are keys.
func (o *odd) inBatches(ctx context.Context) error {
	for _, keyed := range []bool{false, true} {
		var batch []outbox.Request
		var of []request
		for i, q := range acceptable() {
			q.options.IdempotencyKey, q.options.RunAt = "", time.Time{}
			if keyed {
				q.options.IdempotencyKey = fmt.Sprintf("batch %d of %d: %s", i, len(o.want), q.name)
			}
			of, batch = append(of, q), append(batch, outbox.Request{Args: q.args, Options: q.options})
		}
		ids, err := outbox.EnqueueMany(ctx, o.DB, batch)
		if err != nil {
			o.strange = append(o.strange, fmt.Sprintf("a batch of all, with keys %t: %v", keyed, err))
			continue
		}
		for i, id := range ids {
			o.expect(id, of[i])
		}
	}
	return nil
}

// refusals checks that what cannot be stored is refused, with an error that names what is wrong, before anything is
// sent.
func (o *odd) refusals(ctx context.Context) error {
	for _, q := range unacceptable() {
		_, err := outbox.Enqueue(ctx, o.DB, q.args, q.options)
		if _, clear := errors.AsType[*outbox.InvalidError](err); !clear {
			o.strange = append(o.strange, fmt.Sprintf("%s is not refused clearly, but: %v", q.name, err))
		}
		_, err = outbox.EnqueueMany(ctx, o.DB,
			[]outbox.Request{
				{Args: outbox.Raw{KindName: probe.EchoKind, Payload: []byte("1")}},
				{Args: q.args, Options: q.options},
			})
		if _, clear := errors.AsType[*outbox.InvalidError](err); !clear || !strings.Contains(err.Error(), "request 1") {
			o.strange = append(o.strange, fmt.Sprintf("%s is not refused clearly in a batch, but: %v", q.name, err))
		}
		o.Count("unusual inputs refused", 2)
	}
	return nil
}

// byFunction calls outbox.enqueue. What jsonb can hold is delivered as jsonb spells it; Postgres or the function
// refuses everything else.
func (o *odd) byFunction(ctx context.Context) error {
	for _, q := range acceptable() {
		payload := q.args.(outbox.Raw)
		if payload.ContentType != "" {
			continue
		}
		var id outbox.ID
		var spelled string
		err := o.DB.QueryRow(
			ctx, `SELECT outbox.enqueue($1, $2::text::jsonb, key => $3, headers => $4, priority => $5), $2::text::jsonb::text`,
			probe.EchoKind, string(payload.Payload), q.options.Key.Name, q.options.Headers, q.options.Priority).Scan(
			&id, &spelled)
		if o.refused(q.name, err) {
			continue
		}
		q.args = outbox.Raw{KindName: probe.EchoKind, Payload: []byte(spelled)}
		o.expect(id, q)
	}
	return nil
}

// refused reports whether there was an error. It notes one that is not the server's refusal of bad data.
func (o *odd) refused(name string, err error) bool {
	if err == nil {
		return false
	}
	said, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || said.Code[:2] != "22" && said.Code[:2] != "23" && said.Code[:2] != "54" {
		o.strange = append(o.strange, fmt.Sprintf("%s: %v", name, err))
	}
	o.Count("unusual inputs refused", 1)
	return true
}

// bySQL inserts rows directly, as no application should: a row that the table accepts must not stop other jobs.
func (o *odd) bySQL(ctx context.Context) error {
	for _, columns := range oddColumns {
		name := columns.names + " " + columns.values
		var id outbox.ID
		var due bool
		var payload, headers []byte
		var contentType, key string
		err := o.DB.QueryRow(ctx, `INSERT INTO outbox.jobs (id, kind, `+columns.names+`) VALUES (outbox.uuid_v7(), 'verify.echo', `+columns.values+`)
			RETURNING id, run_at < now() + interval '1 day', payload, content_type, coalesce(key, ''), headers::text`).
			Scan(&id, &due, &payload, &contentType, &key, &headers)
		if o.refused(name, err) || !due {
			continue
		}
		o.expectDigest(id, name,
			probe.Digest(payload, contentType, key, (&outbox.Claimed{RawHeaders: headers}).Headers()))
	}
	return nil
}

// check compares what handlers received, and what is stored, with what was enqueued.
func (o *odd) check(ctx context.Context, worker *child.Process) error {
	got := map[outbox.ID]string{}
	for e, err := range ledger.All(o.ledgers()) {
		if err != nil {
			return err
		}
		if _, odd := o.want[e.Job]; odd && e.Event == ledger.End {
			got[e.Job] = e.Key
		}
	}
	var undelivered, changed []string
	for id, digest := range o.want {
		switch digestGot, delivered := got[id]; {
		case !delivered:
			undelivered = append(undelivered, fmt.Sprintf("%s: %s", id, o.names[id]))
		case digestGot != digest:
			changed = append(changed, fmt.Sprintf("%s: %s", id, o.names[id]))
		}
	}
	o.None("inputs neither refused with a clear error nor completed", o.strange)
	o.None("accepted inputs that no handler received", undelivered)
	o.None("accepted inputs that reached the handler changed", changed)
	for what, sql := range map[string]string{
		"results stored differently from what the handler returned": `SELECT id::text FROM outbox.history WHERE kind = 'verify.echo' AND result IS DISTINCT FROM payload AND octet_length(payload) <= 4 << 20`,
		"ordinary jobs not completed":                               `SELECT id::text FROM outbox.jobs WHERE kind = 'verify.task'`,
		"accepted inputs not completed": `SELECT id || ' is ' || status || ': ' || coalesce(last_error_code, '') FROM outbox.jobs
			WHERE kind = 'verify.echo' AND run_at < now() + interval '1 day'`,
	} {
		bad, err := o.Texts(ctx, sql)
		if err != nil {
			return err
		}
		o.None(what, bad)
	}
	for _, trouble := range []string{"claim failed", "settle failed", "chore failed", "leases not extended"} {
		n, err := logged(worker, saying(trouble))
		if err != nil {
			return err
		}
		o.Expect("dispatcher log lines: "+trouble, float64(len(n)), "=", 0)
	}
	o.Expect("unusual inputs accepted", float64(len(o.want)), ">=", 100)
	o.Expect("unusual inputs refused", float64(o.record.Counts["unusual inputs refused"]), ">=", 70)
	return o.viewsAreReadable(ctx)
}

// viewsAreReadable checks that an odd row does not make a view unreadable.
func (o *odd) viewsAreReadable(ctx context.Context) error {
	for _, view := range []string{"open_jobs", "closed_jobs", "dead_letters"} {
		rows, err := o.DB.Query(ctx, `SELECT v::text FROM outbox.`+view+` AS v`)
		if err == nil {
			_, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		unreadable := 0.0
		if err != nil {
			unreadable = 1
		}
		o.Expect("view outbox."+view+" cannot be read", unreadable, "=", 0, fmt.Sprint(err))
	}
	return nil
}
