package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An act that has an opposite can be undone with it, using the previous state. The audit records that state, and the
// state that the act left. If the thing is no longer in the latter, somebody else has changed it meanwhile: undoing the
// act would undo their change, and is refused.

// undoing is how an act of the audit is undone.
type undoing struct {
	thing      *thing
	said, will string // what the act has done, and what undoing it does
}

// thing is a kind of object that people pause and limit.
type thing struct {
	noun, command string // the noun for it, and that of the command line
	gate          gate
	name          func(operator.AuditEntry) string
	page          func(operator.AuditEntry) templ.SafeURL
	row           func(operator.AuditEntry) operator.Row
	standing      func(context.Context, *operator.Operator, operator.AuditEntry) (stance, error)
	pause, resume actOf
}

// actOf does an act on the thing that an entry of the audit names.
type actOf func(context.Context, *operator.Operator, operator.AuditEntry) error

// stance is the present state of a thing, as far as it can be undone.
type stance struct {
	paused time.Time // since when it is paused, or stopped; zero if it is not
	ended  bool      // nothing can be changed any more
	limits limitsOfQueue

	// These are of a schedule: when it was created, how often it was changed since, and when and whether by a program.
	created    time.Time
	generation int64
	declared   bool
	updated    time.Time
}

type limitsOfQueue struct {
	running int
	rate    operator.Rate
}

func queueStanding(q operator.Queue) stance {
	return stance{paused: q.PausedSince, limits: limitsOfQueue{q.MaxRunning, q.Rate}}
}

func scheduleStanding(s operator.Schedule) stance {
	return stance{
		paused: s.PausedSince, created: s.CreatedAt, generation: s.Generation, declared: s.SetBy == "",
		updated: s.UpdatedAt,
	}
}

func operationStanding(o operator.Operation) stance {
	return stance{paused: o.StoppedAt, ended: !o.FinishedAt.IsZero()}
}

var undos map[string]undoing // by act

func init() {
	const goes, stands = "It goes on: ", "It is paused again: "
	undos = map[string]undoing{
		"queue.pause": {
			&queueThing, "The queue is paused: jobs that are running go on, and no others start.",
			goes + "jobs that wait may start, in all processes.",
		},
		"queue.resume": {&queueThing, "The queue goes on.", stands + "no process starts jobs of it."},
		"queue.limit": {
			&queueThing, "The limits hold from the next claim on, in all processes.",
			"It gets back the limits that it had.",
		},
		"schedule.pause": {
			&scheduleThing,
			"The schedule is paused: no tick fires, and ticks of a pause are not missed.",
			goes + "with its next tick from now.",
		},
		"schedule.resume": {&scheduleThing, "The schedule goes on with its next tick.", stands + "no tick fires."},
		"sink.pause": {
			&sinkThing, "The sink is paused: nothing is published to it, and nothing is lost.",
			goes + "with the first event that it has not published.",
		},
		"sink.resume": {&sinkThing, "The sink goes on.", stands + "nothing is published to it."},
		"operation.stop": {
			&operationThing, "The operation is stopped: what it has done stays done.",
			goes + "where it was, with the jobs that are left.",
		},
	}
}

var queueThing = thing{
	noun: "queue", command: "queues", gate: needs(access.AdminMutate).ofAllTenants(),
	name: func(e operator.AuditEntry) string { return e.Queue },
	page: func(e operator.AuditEntry) templ.SafeURL { return link("queue", "queue", e.Queue) },
	row:  func(e operator.AuditEntry) operator.Row { return operator.Row{Queue: e.Queue} },
	standing: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) (stance, error) {
		rule, err := o.QueueRule(ctx, e.Queue)
		return queueStanding(rule), err
	},
	pause: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.Pause(ctx, e.Queue)
	},
	resume: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.Resume(ctx, e.Queue)
	},
}

var scheduleThing = thing{
	noun: "schedule", command: "schedules", gate: needs(access.AdminMutate),
	name: func(e operator.AuditEntry) string { return e.Target },
	page: func(e operator.AuditEntry) templ.SafeURL {
		return link("schedule", "tenant", e.Tenant.String(), "name", e.Target)
	},
	row: func(e operator.AuditEntry) operator.Row {
		return operator.Row{Schedule: e.Target, Tenant: e.Tenant}
	},
	standing: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) (stance, error) {
		found, err := o.Schedule(ctx, e.Tenant, e.Target)
		if errors.Is(err, operator.ErrScheduleNotFound) {
			return stance{ended: true}, nil
		}
		return scheduleStanding(found), err
	},
	pause: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.PauseSchedule(ctx, e.Tenant, e.Target)
	},
	resume: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.ResumeSchedule(ctx, e.Tenant, e.Target)
	},
}

var sinkThing = thing{
	noun: "sink", command: "relay", gate: needs(access.AdminMutate).ofAllTenants(),
	name: func(e operator.AuditEntry) string { return e.Target },
	page: func(e operator.AuditEntry) templ.SafeURL { return link("sink", "name", e.Target) },
	row:  func(e operator.AuditEntry) operator.Row { return operator.Row{Sink: e.Target} },
	standing: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) (stance, error) {
		found, err := o.Sink(ctx, e.Target)
		if errors.Is(err, operator.ErrSinkNotFound) {
			return stance{ended: true}, nil
		}
		return stance{paused: found.PausedAt}, err
	},
	pause: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.PauseSink(ctx, e.Target)
	},
	resume: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		return o.ResumeSink(ctx, e.Target)
	},
}

var operationThing = thing{
	noun: "operation", command: "operations", gate: needs(access.AdminMutate),
	name: func(e operator.AuditEntry) string { return e.Target },
	page: func(e operator.AuditEntry) templ.SafeURL { return link("operation", "id", e.Target) },
	row: func(e operator.AuditEntry) operator.Row {
		id, _ := outbox.ParseID(e.Target) // the zero id matches none
		return operator.Row{Operation: id}
	},
	standing: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) (stance, error) {
		id, _ := outbox.ParseID(e.Target) // the zero id matches none
		found, err := o.Operation(ctx, e.Tenant, id)
		if errors.Is(err, operator.ErrOperationNotFound) {
			return stance{ended: true}, nil
		}
		return operationStanding(found), err
	},
	pause: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		id, _ := outbox.ParseID(e.Target)
		_, err := o.StopOperation(ctx, e.Tenant, id)
		return err
	},
	resume: func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		id, _ := outbox.ParseID(e.Target)
		_, err := o.ResumeOperation(ctx, e.Tenant, id)
		return err
	},
}

// recorded is what the audit records of a thing before or after an act.
type recorded struct {
	PausedAt     *time.Time `json:"paused_at"`
	StoppedAt    *time.Time `json:"stopped_at"`
	MaxRunning   int        `json:"max_running"`
	Rate         int        `json:"rate"`
	RateInterval *string    `json:"rate_interval"` // as Postgres writes it
}

// limitsIn returns the limits in an entry; false if they cannot be read.
func limitsIn(text json.RawMessage) (l limitsOfQueue, ok bool) {
	var r recorded
	if json.Unmarshal(text, &r) != nil {
		return l, false
	}
	l = limitsOfQueue{r.MaxRunning, operator.Rate{Starts: r.Rate}}
	if r.RateInterval != nil {
		var i pgtype.Interval
		if i.Scan(*r.RateInterval) != nil || i.Months != 0 {
			return l, false
		}
		l.rate.Interval = time.Duration(i.Days)*24*time.Hour + time.Duration(i.Microseconds)*time.Microsecond
	}
	return l, true
}

// asLeft reports whether a thing is in the state in which the act left it.
//
// A pause must be the same one: somebody may have ended it and begun another, for other reasons. The audit records its
// instant, except for a schedule, whose pause begins just before its entry is written; a later pause begins after the
// entry.
func (s stance) asLeft(e operator.AuditEntry) bool {
	var left recorded
	if s.ended || s.created.After(e.At) || json.Unmarshal(e.After, &left) != nil {
		return false
	}
	switch verbOf(e.Act) {
	case "limit":
		_, known := limitsIn(e.Before)
		after, ok := limitsIn(e.After)
		return known && ok && s.limits == after
	case "resume":
		return s.paused.IsZero()
	}
	if since := cmp.Or(left.PausedAt, left.StoppedAt); since != nil {
		return s.paused.Equal(*since)
	}
	return !s.paused.IsZero() && !s.paused.After(e.At)
}

// verbOf returns what an act does: pause, of queue.pause.
func verbOf(act string) string { return act[strings.LastIndexByte(act, '.')+1:] }

// as reports whether a thing is as an act leaves it, however it came to be so.
func (s stance) as(act string) bool {
	switch verbOf(act) {
	case "pause", "stop":
		return !s.ended && !s.paused.IsZero()
	case "resume":
		return !s.ended && s.paused.IsZero()
	case "delete":
		return s.ended
	}
	return false
}

// run does the opposite of the act.
func (u undoing) run(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
	switch {
	case e.Act == "queue.limit":
		was, _ := limitsIn(e.Before) // asLeft has parsed them
		_, _, err := o.Limit(ctx, e.Queue, operator.Limits{MaxRunning: &was.running, Rate: &was.rate})
		return err
	case strings.HasSuffix(e.Act, ".resume"):
		return u.thing.pause(ctx, o, e)
	}
	return u.thing.resume(ctx, o, e)
}

// inWords describes what undoing does, in words and on the command line.
func (u undoing) inWords(e operator.AuditEntry) (will, command string) {
	name := shellQuoted(u.thing.name(e))
	if e.Act == "queue.limit" {
		was, _ := limitsIn(e.Before)
		running, rate := " --no-max-running", " --no-rate"
		if was.running > 0 {
			running = " --max-running " + strconv.Itoa(was.running)
		}
		if was.rate.Starts > 0 {
			rate = " --rate " + strconv.Itoa(was.rate.Starts) + "/" + intervalText(was.rate.Interval)
		}
		text := limitsText(operator.Queue{MaxRunning: was.running, Rate: was.rate})
		return "It gets back the limits that it had: " + cmp.Or(text, "none") + ".", "posthaste queues limit " +
			name + running + rate
	}
	verb := "resume"
	if strings.HasSuffix(e.Act, ".resume") {
		verb = "pause"
	}
	command = "posthaste " + u.thing.command + " " + verb + " " + name
	if u.thing == &scheduleThing {
		command += tenantFlag(e.Tenant)
	}
	return u.will, command
}

// undone returns the entry that a parameter names, and how it is undone.
func (v *visit) undone(parameter string) (e operator.AuditEntry, u undoing, err error) {
	id, err := strconv.ParseInt(v.param(parameter), 10, 64)
	if err != nil || id < 1 || id == math.MaxInt64 {
		return e, u, unreadable(parameter, "is no number of an act")
	}
	found, err := v.operator.Audit(v.ctx(), operator.AuditFilter{Tenant: v.tenant(), Before: id + 1, Limit: 1})
	if err != nil {
		return e, u, err
	}
	if len(found) == 0 || found[0].ID != id {
		return e, u, refusal{
			http.StatusNotFound, "There is no such act",
			"It was trimmed from the audit, or belongs to another tenant.",
		}
	}
	e, u = found[0], undos[found[0].Act]
	if u.thing == nil {
		return e, u, refusal{http.StatusConflict, "This act cannot be undone", "What " + e.Act +
			" does has no opposite that restores what was there."}
	}
	if why := v.whyNot(u.thing.gate); why != "" {
		return e, u, refusal{http.StatusForbidden, "You may not undo this", why + "."}
	}
	return e, u, nil
}

// mayUndoStop refuses what resuming the operation would refuse.
func (v *visit) mayUndoStop(e operator.AuditEntry) error {
	id, _ := outbox.ParseID(e.Target) // the zero id matches none
	found, err := v.operator.Operation(v.ctx(), v.tenant(), id)
	if errors.Is(err, operator.ErrOperationNotFound) { // it ended long ago, which the page reports instead
		return nil
	}
	return cmp.Or(err, v.mayGoOn(found))
}

// askUndo shows the first step of undoing an act.
func askUndo(v *visit) (c confirmation, err error) {
	e, u, err := v.undone("entry")
	if err == nil && u.thing == &operationThing {
		err = v.mayUndoStop(e)
	}
	if err != nil {
		return c, err
	}
	if v.r.Method == http.MethodGet {
		now, err := u.thing.standing(v.ctx(), v.operator, e)
		if err != nil {
			return c, err
		}
		if !now.asLeft(e) {
			return c, v.changedSince(now, e, u.thing)
		}
	}
	will, command := u.inWords(e)
	name := u.thing.name(e)
	return confirmation{
		title: "Undo " + e.Act + " of " + u.thing.noun + " " + name, back: u.thing.page(e), crumb: name,
		hidden: []field{{"entry", strconv.FormatInt(e.ID, 10)}},
		will: []string{
			fmt.Sprintf("%s did it %s ago.", e.Actor, age(v.now.Sub(e.At))), will,
			"If somebody changes it before you confirm, nothing is done.",
		},
		command: command,
	}, nil
}

// doUndo undoes an act, if the state that it left still holds when the undoing is committed.
func doUndo(v *visit, o *operator.Operator) error {
	e, u, err := v.undone("entry")
	if err != nil {
		return err
	}
	if v.param("reason") == "" {
		o = o.Because(fmt.Sprintf("undo of act %d", e.ID))
	}
	changed, now := false, stance{}
	err = o.Locked(v.ctx(), u.thing.row(e), func(o *operator.Operator) (err error) {
		now, err = u.thing.standing(v.ctx(), o, e)
		if changed = err == nil && !now.asLeft(e); err != nil || changed {
			return err
		}
		return u.run(v.ctx(), o, e)
	})
	if changed {
		return v.changedSince(now, e, u.thing)
	}
	return err
}

// othersAct returns the refusal for an act in a snapshot that others have kept from being committed, or the error.
func othersAct(err error) error {
	if pgsession.State(err) == pgsession.SerializationFailure {
		return refusal{http.StatusConflict, "Others are acting just now", "Nothing was changed. Try again in a moment."}
	}
	return err
}

// actsOn returns the latest acts on the thing that an entry names, newest first, however many acts on jobs others do.
// It reads the audit for a bounded time, from an instant on.
func (v *visit) actsOn(t *thing, e operator.AuditEntry, since time.Time) ([]operator.AuditEntry, error) {
	if t == &queueThing {
		return v.operator.QueueActs(v.ctx(), e.Queue, v.tenant(), operator.DefaultLimit)
	}
	page, err := v.operator.AuditPage(v.ctx(), operator.AuditFilter{
		Tenant: v.tenant(), Target: e.Target, Since: since, Limit: operator.DefaultLimit,
	})
	return page.Entries, err
}

// latestOn returns the latest act after e that changed what e changes of the thing; the zero act if there is none, or
// the viewer sees no acts.
func (v *visit) latestOn(t *thing, e operator.AuditEntry) (operator.AuditEntry, error) {
	if !v.can(access.AdminRead) {
		return operator.AuditEntry{}, nil
	}
	latest, err := v.actsOn(t, e, e.At)
	for _, l := range latest {
		of, verb, _ := strings.Cut(l.Act, ".")
		same := verb == "limit"
		if e.Act != "queue.limit" {
			same = slices.Contains([]string{"pause", "stop", "resume", "delete", "remove", "create", "change"}, verb)
		}
		if l.ID > e.ID && of == t.noun && same && t.page(l) == t.page(e) {
			return l, err
		}
	}
	return operator.AuditEntry{}, err
}

// changedSince names the person who has changed the state that the act left. The act may be none that was done, but one
// that cannot be done because its thing is no longer as a page has shown it.
func (v *visit) changedSince(now stance, e operator.AuditEntry, t *thing) error {
	if now.ended && t == &operationThing {
		return refusal{http.StatusConflict, "The operation has ended", "Nothing was changed."}
	}
	latest, err := v.latestOn(t, e)
	if err != nil {
		return err
	}
	next := "It is not as it was shown. Nothing was changed."
	switch {
	case e.ID == 0 && now.declared && now.updated.After(latest.At) &&
		!strings.HasSuffix(v.param("shown"), now.version()):
		next = fmt.Sprintf("A program declared it %s ago. Nothing was changed now.",
			age(v.now.Sub(now.updated)))
	case latest.ID > 0:
		next = fmt.Sprintf("%s did %s %s ago. Nothing was changed now.", latest.Actor, latest.Act,
			age(v.now.Sub(latest.At)))
	case e.ID > 0:
		next = "It is not as " + e.Act + " has left it. Nothing was changed."
	}
	return refusal{http.StatusConflict, "The " + t.noun + " was changed meanwhile", next}
}

// withDone returns the URL of a page with what this request has done to its thing, if that can be undone.
func (v *visit) withDone(to templ.SafeURL) templ.SafeURL {
	if !v.can(access.AdminRead) {
		return to
	}
	if v.before > 0 {
		return to + templ.SafeURL("&done="+strconv.FormatInt(v.before, 10))
	}
	mine, err := v.operator.AuditPage(v.ctx(), operator.AuditFilter{
		Tenant: v.tenant(), RequestID: v.id, Since: v.now.Add(-time.Minute), Limit: operator.DefaultLimit,
	})
	if err != nil {
		return to // it is done, and the page shows the state
	}
	for _, e := range mine.Entries {
		if u := undos[e.Act]; u.thing != nil && u.thing.page(e) == to {
			return to + templ.SafeURL("&done="+strconv.FormatInt(e.ID, 10))
		}
	}
	return to
}

// doneAct is what was just done to the thing of a page, and the entry by which it is undone; 0 if it cannot be.
type doneAct struct {
	said  string
	entry int64
}

// justDone returns what the page's parameter names, while that still holds.
func (v *visit) justDone(now stance) (d doneAct, err error) {
	if v.param("done") == "" {
		return d, nil
	}
	e, u, err := v.undone("done")
	if r, ok := errors.AsType[refusal](err); ok && r.status != http.StatusBadRequest {
		return d, nil // nothing can be undone here; show the page without it
	}
	if err != nil || u.thing.page(e) != v.without("done") || !now.asLeft(e) {
		return d, err
	}
	return doneAct{u.said, e.ID}, nil
}

// A form for an act on a thing sends along how its page has shown the thing: somebody who resumes what was paused at
// 11:00 does not end the pause that somebody else has begun at 12:00, and who deletes a schedule does not delete what
// somebody else has made of it, or created under its name.

// shown returns the stance in the form in which a page sends it along.
func (s stance) shown() field {
	value := "on"
	switch {
	case s.ended:
		return field{"shown", "ended"}
	case !s.paused.IsZero():
		value = s.paused.UTC().Format(time.RFC3339Nano)
	}
	return field{"shown", value + s.version()}
}

// version distinguishes a schedule from what others make of it, or create under its name; "" of other things.
func (s stance) version() string {
	if s.created.IsZero() {
		return ""
	}
	return fmt.Sprintf(" change %d of %s", s.generation, s.created.UTC().Format(time.RFC3339Nano))
}

// twice is how soon after a person's act the same one is the same click.
const twice = 5 * time.Second

// actOnThing acts on a thing, if it still is as the page has shown it; otherwise it names who was first. What is paused
// already is not paused again. Such an act may be an emergency: it waits for those who are changing the thing's row,
// such as the steps of an operation, and is not refused because of them. A form that is sent twice, by a double click,
// is answered like the first one.
func (v *visit) actOnThing(o *operator.Operator, t *thing, e operator.AuditEntry, do actOf) error {
	shown := v.param("shown")
	if shown == "" {
		return unreadable("shown", "is missing")
	}
	changed, now := false, stance{}
	err := o.Locked(v.ctx(), t.row(e), func(o *operator.Operator) (err error) {
		now, err = t.standing(v.ctx(), o, e)
		changed = err == nil && (now.shown().value != shown || now.ended || now.as(e.Act))
		if err != nil || changed {
			return err
		}
		return do(v.ctx(), o, e)
	})
	if !changed {
		return err
	}
	if now.as(e.Act) {
		if latest, err := v.latestOn(t, e); err == nil && latest.Act == e.Act && latest.Actor == v.who.Name &&
			v.now.Sub(latest.At) < twice {
			v.before = latest.ID
			return nil
		}
	}
	return v.changedSince(now, e, t)
}

// undoable returns those of the newest acts whose result no later act in the list has changed.
func (v *visit) undoable(entries []operator.AuditEntry) map[int64]bool {
	can, changed := map[int64]bool{}, map[string]bool{}
	for _, e := range entries {
		u := undos[e.Act]
		if u.thing == nil {
			continue
		}
		what := string(u.thing.page(e)) + strconv.FormatBool(e.Act == "queue.limit")
		can[e.ID] = !changed[what] && v.whyNot(u.thing.gate) == ""
		changed[what] = true
	}
	return can
}
