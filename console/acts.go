package console

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// act is an act on one thing, in two steps: a page that describes what will happen, and its form, which does it. The
// form sends what was previewed along, so that it does exactly that or nothing.
type act struct {
	path   string
	params string // identify the thing
	form   string // further fields of the form, in addition to the reason
	gate   gate
	label  string // text of the link to the first step, and of the button of the second
	ask    func(*visit) (confirmation, error)
	do     func(*visit, *operator.Operator) error
}

// These are the names of what is acted on, as parameters of its page.
const (
	onID       = "id" // of a job or an operation
	onLetters  = "error kind queue status code key tenant since until"
	onJobs     = "kind queue status key tenant since until"
	onKey      = "tenant queue key"
	onSchedule = "tenant name"
	onSink     = "name"
	onView     = "name shared"
)

var acts = []act{
	{
		"job-retry", onID, "while after", needs(access.AdminMutate), "Run again", jobAct(retryJob),
		doJob((*operator.Operator).Retry),
	},
	{"job-cancel", onID, "while after", needs(access.JobsCancel), "Cancel", jobAct(cancelJob), doJob(cancelled)},
	{
		"job-release", onID, "while after", needs(access.AdminMutate), "Release", jobAct(releaseJob),
		doJob((*operator.Operator).Release),
	},
	{
		"job-dismiss", onID, "while after", needs(access.AdminMutate), "Dismiss", jobAct(dismissJob),
		doJob((*operator.Operator).Dismiss),
	},
	{
		"letters-replay", onLetters, "failed_until rate once", needs(access.AdminMutate), "Run again",
		askLetters(operator.ReplayLetters), doLetters(operator.ReplayLetters),
	},
	{
		"letters-dismiss", onLetters, "failed_until once", needs(access.AdminMutate), "Dismiss",
		askLetters(operator.DismissLetters), doLetters(operator.DismissLetters),
	},
	{
		"jobs-cancel", onJobs, "as_of rate once", needs(access.AdminRead, access.AdminMutate, access.JobsCancel), "Cancel all",
		askJobs(operator.CancelJobs), doJobs(operator.CancelJobs),
	},
	{
		"jobs-release", onJobs, "as_of rate once", needs(access.AdminRead, access.AdminMutate), "Release all",
		askJobs(operator.ReleaseJobs), doJobs(operator.ReleaseJobs),
	},
	{
		"jobs-retry", onJobs, "as_of rate once", needs(access.AdminRead, access.AdminMutate), "Run all now",
		askJobs(operator.RetryJobs), doJobs(operator.RetryJobs),
	},
	{
		"jobs-edit", onJobs + " set_queue set_priority set_run_at", "as_of rate once",
		needs(access.AdminRead, access.AdminMutate), "Edit all", askJobs(operator.EditJobs), doJobs(operator.EditJobs),
	},
	{
		"selected-retry", onSelected, "while", needs(access.AdminRead, access.AdminMutate), "Run again",
		askSelected("retry", retryJob), doSelected((*operator.Operator).Retry),
	},
	{
		"selected-cancel", onSelected, "while", needs(access.AdminRead, access.JobsCancel), "Cancel",
		askSelected("cancel", cancelJob), doSelected(cancelled),
	},
	{
		"selected-release", onSelected, "while", needs(access.AdminRead, access.AdminMutate), "Release",
		askSelected("release", releaseJob), doSelected((*operator.Operator).Release),
	},
	{
		"selected-dismiss", onSelected, "while", needs(access.AdminRead, access.AdminMutate), "Dismiss",
		askSelected("dismiss", dismissJob), doSelected((*operator.Operator).Dismiss),
	},
	{
		"operation-stop", onID, "shown", needs(access.AdminMutate), "Stop", operationAct("stop"),
		doThing(&operationThing, "operation.stop"),
	},
	{
		"operation-resume", onID, "shown", needs(access.AdminMutate), "Resume", operationAct("resume"),
		doThing(&operationThing, "operation.resume"),
	},
	{"key-unblock", onKey, "blocks", needs(access.AdminMutate), "Unblock", askUnblock, doUnblock},
	{
		"schedule-pause", onSchedule, "shown", needs(access.AdminMutate), "Pause", scheduleAct("pause"),
		doThing(&scheduleThing, "schedule.pause"),
	},
	{
		"schedule-resume", onSchedule, "shown", needs(access.AdminMutate), "Resume", scheduleAct("resume"),
		doThing(&scheduleThing, "schedule.resume"),
	},
	{"schedule-run", onSchedule, "shown once", needs(access.AdminMutate), "Run now", scheduleAct("run"), ranSchedule},
	{
		"schedule-delete", onSchedule, "shown", needs(access.AdminMutate), "Delete", scheduleAct("delete"),
		doOn(&scheduleThing, "schedule.delete", deleted),
	},
	{
		"sink-pause", onSink, "shown", needs(access.AdminMutate).ofAllTenants(), "Pause", sinkAct("pause"),
		doThing(&sinkThing, "sink.pause"),
	},
	{
		"sink-resume", onSink, "shown", needs(access.AdminMutate).ofAllTenants(), "Resume", sinkAct("resume"),
		doThing(&sinkThing, "sink.resume"),
	},
	{"view-delete", onView, "shown", needs(access.JobsRead), "Delete", askDeleteView, doDeleteView},
	{"undo", "entry", "", needs(access.AdminRead, access.AdminMutate), "Undo", askUndo, doUndo},
}

// actRoutes returns the rows of the acts: the page and its form.
func actRoutes() (rows []route) {
	for _, a := range acts {
		rows = append(rows,
			route{"GET", a.path, a.gate, a.params, "", func(_ *site, v *visit) error {
				c, err := a.preview(v)
				if err != nil {
					return err
				}
				if c.unset {
					return v.render(setPage(v, c))
				}
				return v.render(confirmPage(v, c))
			}},
			route{
				"POST", a.path, a.gate, a.params + " reason matched typed " + a.form, "",
				func(_ *site, v *visit) error {
					c, err := a.ask(v)
					if err != nil {
						return err
					}
					err = v.confirmed(c)
					if err == nil {
						err = a.do(v, v.operator.Because(v.param("reason")))
					}
					if fault, is := errors.AsType[badInput](err); is {
						return a.again(v, fault)
					}
					if err != nil {
						return v.tooLate(err)
					}
					if v.acted.of > 0 {
						c.back = v.acted.at(c.back)
					}
					if _, undoable := undos[strings.Replace(a.path, "-", ".", 1)]; undoable || a.path == "undo" {
						c.back = v.withDone(c.back)
					}
					return v.redirect(c.back)
				},
			})
	}
	return rows
}

// badInput describes what is wrong with a person's input. The form is shown again as it was sent.
type badInput string

func (b badInput) Error() string { return string(b) }

// confirmed refuses an act if its confirmation lacks something.
func (v *visit) confirmed(c confirmation) error {
	if c.reason && strings.TrimSpace(v.param("reason")) == "" {
		return badInput("A reason is missing: it stands in the audit with each of the jobs. Nothing was changed.")
	}
	if c.many {
		return v.typedCount()
	}
	return nil
}

// preview runs the first step of an act.
func (a act) preview(v *visit) (confirmation, error) {
	c, err := a.ask(v)
	c.action, c.label, c.crumb = a.path, cmp.Or(c.label, a.label), cmp.Or(c.crumb, "Back")
	if slices.Contains(strings.Fields(a.form), "once") && !c.unset {
		c.hidden = append(c.hidden, field{"once", outbox.NewID().String()})
	}
	return c, err
}

// again runs the first step once more, for the present state, with the input and what is wrong with it.
func (a act) again(v *visit, fault badInput) error {
	first, of := *v, *v.route
	of.method, of.params = http.MethodGet, a.params
	first.route, first.r = &of, v.r.WithContext(v.ctx())
	first.r.Method = http.MethodGet
	c, err := a.preview(&first)
	if err != nil {
		return err
	}
	c.fault, v.status = string(fault), http.StatusBadRequest
	return v.render(confirmPage(v, c))
}

// actOn returns the link to the first step of an act on what the pairs name; why is the reason for which this viewer
// has none, or "".
func (v *visit) actOn(path string, pairs ...string) (label string, to templ.SafeURL, why string) {
	for _, a := range acts {
		if a.path == path {
			return a.label + "…", link(path, pairs...), v.whyNot(a.gate)
		}
	}
	panic("no act " + path)
}

// makeDue is what retrying is called for a job that waits for its time.
const makeDue = "Make due now"

// waits reports whether a job waits for its time.
func waits(s outbox.Status) bool { return s == outbox.Pending || s == outbox.Retrying }

// jobAct returns the link to the first step of an act on a job in this status; why is the reason for which this viewer
// has none, or "".
func (v *visit) jobAct(path string, s outbox.Status, id string) (label string, to templ.SafeURL, why string) {
	label, to, why = v.actOn(path, "id", id)
	if path == "job-retry" && waits(s) {
		label = makeDue + "…"
	}
	return label, to, why
}

// whyNot returns why this viewer may not do what the gate protects, or "".
func (v *visit) whyNot(g gate) string {
	switch {
	case v.readOnly() != "":
		return "Read-only: " + v.readOnly()
	case g.missing(v.who) != "":
		return "Needs " + string(g.missing(v.who))
	case !g.admits(v.who):
		return "Needs a login that sees all tenants"
	}
	return ""
}

// tooLate names the person who was first, if somebody has acted on the job since the page was made; otherwise the job
// has gone on by itself.
func (v *visit) tooLate(err error) error {
	moved, ok := errors.AsType[*operator.StatusError](err)
	if !ok {
		return err
	}
	next := "It is in no status in which this can be done. Nothing was changed."
	id, parsed := outbox.ParseID(v.param("id"))
	before, known := strconv.ParseInt(v.param("after"), 10, 64)
	if parsed == nil {
		v.again = place{"Look again", string(link("job", "id", id.String()))}
	}
	if parsed == nil && known == nil && v.can(access.AdminRead) {
		latest, failed := v.latestAct(id)
		switch {
		case failed != nil:
		case latest.ID > before:
			next = fmt.Sprintf("%s did %s %s ago. Nothing was changed now.", latest.Actor, latest.Act,
				age(v.now.Sub(latest.At)))
		default:
			next = "Nobody has acted on it since: it went on without an operator. Nothing was changed now."
		}
	}
	again := "" // set if it has another epoch
	shown, _ := parseSeen(v.param("while"))
	if shown.status == moved.Status || moved.Act == "replay" && (moved.Status == outbox.Failed ||
		moved.Status == outbox.Dead) {
		again = "again "
	}
	return refusal{http.StatusConflict, "The job is " + string(moved.Status) + " " + again + "by now", next}
}

// latestAct returns the latest act on a job; the zero act if there is none.
func (v *visit) latestAct(job outbox.ID) (e operator.AuditEntry, err error) {
	found, err := v.operator.Audit(v.ctx(), operator.AuditFilter{JobID: job, Tenant: v.tenant(), Limit: 1})
	if len(found) > 0 {
		e = found[0]
	}
	return e, err
}

// shownAct returns the value of the field “after” of a form: the latest act on the job of which its page can know; ""
// for those who see no acts.
func (v *visit) shownAct(job outbox.ID) (string, error) {
	if !v.can(access.AdminRead) {
		return "", nil
	}
	latest, err := v.latestAct(job)
	return strconv.FormatInt(latest.ID, 10), err
}

// jobAct returns the first step of an act on a job.
func jobAct(words func(operator.Job, *confirmation) error) func(*visit) (confirmation, error) {
	return func(v *visit) (c confirmation, err error) {
		j, err := v.site.jobOf(v)
		if err != nil {
			return c, err
		}
		c = confirmation{
			back: link("job", "id", j.ID.String()), crumb: j.Kind + " " + shortID(j.ID),
			hidden: []field{{"id", j.ID.String()}, {"while", seenOf(j).String()}},
		}
		if v.r.Method == http.MethodPost {
			return c, nil
		}
		after, err := v.shownAct(j.ID)
		if err != nil {
			return c, err
		}
		c.hidden = append(c.hidden, field{"after", after})
		return c, words(j, &c)
	}
}

// seen is a job's status and epoch as a page showed them. The epoch distinguishes a dead letter from one that has run
// since and died for another reason.
type seen struct {
	status outbox.Status
	epoch  int64
}

func seenOf(j operator.Job) seen { return seen{j.Status, j.Epoch} }

// String returns the value of the field “while” of a form: dead@3.
func (s seen) String() string { return string(s.status) + "@" + strconv.FormatInt(s.epoch, 10) }

func parseSeen(text string) (s seen, err error) {
	status, epoch, _ := strings.Cut(text, "@")
	if s.status, err = operator.ParseStatus(status); err != nil {
		return s, unreadable("while", "is no status")
	}
	if s.epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil {
		return s, unreadable("while", "has no epoch")
	}
	return s, nil
}

// only returns an operator that acts on a job only as it was seen.
func (s seen) only(o *operator.Operator) *operator.Operator { return o.Only(s.status).AtEpoch(s.epoch) }

// doJob returns the second step, which acts on a job while it is as it was previewed.
func doJob(do func(*operator.Operator, context.Context, outbox.ID) error) func(*visit, *operator.Operator) error {
	return func(v *visit, o *operator.Operator) error {
		id, err := outbox.ParseID(v.param("id"))
		if err != nil {
			return unreadable("id", "is no job’s id")
		}
		shown, err := parseSeen(v.param("while"))
		if err != nil {
			return err
		}
		return do(shown.only(o), v.ctx(), id)
	}
}

func cancelled(o *operator.Operator, ctx context.Context, id outbox.ID) error {
	_, err := o.Cancel(ctx, id)
	return err
}

func retryJob(j operator.Job, c *confirmation) error {
	c.title, c.command = "Run job "+shortID(j.ID)+" again", "posthaste jobs retry "+j.ID.String()
	switch {
	case j.PastDeadline:
		return operator.ErrPastDeadline
	case j.Status == outbox.Failed || j.Status == outbox.Dead:
		c.will = []string{fmt.Sprintf("The dead letter becomes pending again, with all its %d attempts.",
			j.MaxAttempts)}
	case waits(j.Status):
		c.title, c.label = "Make job "+shortID(j.ID)+" due now", makeDue
		c.will = []string{"It is due now and does not wait any longer. Its attempts stay as they are."}
	default:
		return &operator.StatusError{Status: j.Status}
	}
	c.will = append(c.will, "It starts as soon as a worker is free. What its handler did before may happen again.")
	return nil
}

func cancelJob(j operator.Job, c *confirmation) error {
	c.title, c.command, c.danger = "Cancel job "+shortID(j.ID), "posthaste jobs cancel "+j.ID.String(), true
	switch j.Status {
	case outbox.Running:
		c.will = []string{
			"Its handler is asked to stop: its context ends within a second.",
			"If the handler succeeds all the same, the job has succeeded; otherwise it is cancelled.",
		}
	case outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying:
		c.will = []string{"It is cancelled at once and never runs."}
	default:
		return &operator.StatusError{Status: j.Status}
	}
	c.will = append(c.will, "It cannot be undone: enqueue it again if it was wrong.")
	return nil
}

func releaseJob(j operator.Job, c *confirmation) error {
	if j.Status != outbox.Created {
		return &operator.StatusError{Status: j.Status}
	}
	c.title, c.command = "Release job "+shortID(j.ID), "posthaste jobs release "+j.ID.String()
	c.will = []string{"The job is pending, and runs when it is due and a worker is free.", "It cannot be held again."}
	return nil
}

func dismissJob(j operator.Job, c *confirmation) error {
	if j.Status != outbox.Failed && j.Status != outbox.Dead {
		return &operator.StatusError{Status: j.Status}
	}
	c.title, c.command, c.danger = "Dismiss job "+shortID(j.ID), "posthaste jobs dismiss "+j.ID.String(), true
	c.will = []string{
		"The dead letter moves to the history as dismissed, and never runs again.",
		"It cannot be undone.",
	}
	if j.Key != "" {
		c.will = append(c.will, "Jobs behind it in its key follow, if they wait for it.")
	}
	return nil
}

// keyName returns the key that the parameters name.
func (v *visit) keyName() (name operator.KeyName, err error) {
	name = operator.KeyName{Tenant: v.who.Tenant, Queue: v.param("queue"), Key: v.param("key")}
	if tenant := v.param("tenant"); tenant != "" {
		if name.Tenant, err = v.tenantParam(tenant); err != nil {
			return name, err
		}
	}
	if name.Key == "" {
		return name, unreadable("key", "is missing")
	}
	return name, nil
}

func askUnblock(v *visit) (c confirmation, err error) {
	name, err := v.keyName()
	if err != nil {
		return c, err
	}
	k, err := v.operator.Key(v.ctx(), name)
	if err != nil {
		return c, err
	}
	c = confirmation{
		title: "Unblock key " + k.Key, back: link("key", keyPairs(k.KeyName)...), crumb: k.Key,
		command: unblockCommand(k.KeyName),
	}
	if v.r.Method == http.MethodPost {
		c.back = link("key", append(keyPairs(k.KeyName), "request", v.id)...)
		return c, nil
	}
	blocks, err := v.operator.BlockingLetters(v.ctx(), name)
	if err != nil {
		return c, err
	}
	shown := shownKey{Key: k, blocks: len(blocks)}
	if !shown.unblocks() {
		return c, refusal{
			http.StatusConflict, "Nothing to unblock",
			"The key is not parked, and no dead letter of it blocks others. " +
				"Each can be run again or dismissed alone.",
		}
	}
	c.will = shown.willUnblock()
	pairs := append(keyPairs(k.KeyName), "blocks", operator.BlocksOf(blocks))
	for i := 0; i < len(pairs); i += 2 {
		c.hidden = append(c.hidden, field{pairs[i], pairs[i+1]})
	}
	return c, nil
}

// willUnblock describes what unblocking the key does.
func (k shownKey) willUnblock() (will []string) {
	if k.blocks > 0 {
		will = append(will, fmt.Sprintf(
			"What blocks it runs again, at its old place: %s. The jobs behind (%d blocked) follow in order.",
			plural(k.blocks, "dead letter"), k.Blocked))
	} else {
		will = append(will, "No dead letter of it runs again.")
	}
	if left := k.DeadLetters - int64(k.blocks); left > 0 {
		will = append(will, fmt.Sprintf(
			"Its other dead letters (%d) stay: they block nothing, or their deadline has passed.", left))
	}
	if !k.ParkedSince.IsZero() {
		will = append(will, "The key is no longer parked.")
	}
	return append(will, "If other dead letters block it before you confirm, nothing is done.")
}

// doUnblock unblocks the key if the dead letters that block it are those that were previewed.
func doUnblock(v *visit, o *operator.Operator) error {
	name, err := v.keyName()
	if err != nil {
		return err
	}
	blocks := v.param("blocks")
	if blocks == "" {
		return unreadable("blocks", "is missing")
	}
	_, err = o.UnblockIf(v.ctx(), name, blocks) // the key's page says how many it has retried
	if errors.Is(err, operator.ErrBlocksChanged) {
		return badInput("Other dead letters block the key by now: this is how it stands. Nothing was changed.")
	}
	return err
}

// scheduleAct returns the first step of an act on a schedule.
func scheduleAct(verb string) func(*visit) (confirmation, error) {
	will := map[string][]string{
		"pause": {
			"No tick fires any more, in any process. Ticks of a pause are not missed.",
			"It can be undone: resume the schedule.",
		},
		"resume": {"It goes on with its next tick from now. It can be undone: pause it again."},
		"run":    {"Its job is enqueued now, also while it is paused. No tick is moved."},
		"delete": {
			"It is forgotten; jobs that it has enqueued stay.",
			"A program that declares it creates it again when it starts: to keep it from ticking, pause it.",
		},
	}
	return func(v *visit) (c confirmation, err error) {
		if v.r.Method == http.MethodPost {
			return onStaleSchedule(v, verb)
		}
		found, err := v.site.scheduleOf(v)
		if err != nil {
			return c, err
		}
		return confirmation{
			title: upperFirst(verb) + " schedule " + found.Name, will: will[verb], danger: verb == "delete",
			back: link("schedule", "tenant", found.Tenant.String(), "name", found.Name), crumb: found.Name,
			hidden: []field{
				{"tenant", found.Tenant.String()}, {"name", found.Name}, scheduleStanding(found).shown(),
			},
			command: "posthaste schedules " + verb + " " + shellQuoted(found.Name) + tenantFlag(found.Tenant),
		}, nil
	}
}

// onStaleSchedule returns where the second step of an act on a schedule leads. It does not look for the schedule: if
// somebody has deleted it, the act itself finds out who.
func onStaleSchedule(v *visit, verb string) (c confirmation, err error) {
	tenant, err := v.tenantParam(v.param("tenant"))
	if err != nil {
		return c, err
	}
	c.back = link("schedule", "tenant", tenant.String(), "name", v.param("name"))
	if verb == "delete" {
		c.back = link("schedules")
	}
	return c, nil
}

func deleted(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
	return o.DeleteSchedule(ctx, e.Tenant, e.Target)
}

func ranSchedule(v *visit, o *operator.Operator) error {
	once, err := v.once()
	if err != nil {
		return err
	}
	run := func(ctx context.Context, o *operator.Operator, e operator.AuditEntry) error {
		_, _, err := o.RunScheduleOnce(ctx, e.Tenant, e.Target, once)
		return err
	}
	return doOn(&scheduleThing, "schedule.run", run)(v, o)
}

// onceFor is how long a form can be sent after it was shown.
const onceFor = 24 * time.Hour

// once returns the id in a form that makes its act happen once, however often it is sent. A list of operations is in
// the order of these ids: it accepts one that it could have made, not one that would stand above or below all others.
func (v *visit) once() (outbox.ID, error) {
	id, err := outbox.ParseID(v.param("once"))
	if err != nil {
		return id, unreadable("once", "is no id")
	}
	made := time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
	if id[6]>>4 != 7 || id[8]>>6 != 2 || v.now.Sub(made) > onceFor || made.Sub(v.now) > time.Hour {
		return id, unreadable("once", "is no id that this form had in the last day: load the page again")
	}
	return id, nil
}

// sinkAct returns the first step of an act on a sink.
func sinkAct(verb string) func(*visit) (confirmation, error) {
	will := map[string][]string{
		"pause": {
			"Nothing is published to it any more, within two seconds. Events are kept, and other sinks go on.",
			"It can be undone: resume the sink.",
		},
		"resume": {"It goes on with the first event that it has not published. It can be undone: pause it again."},
	}
	return func(v *visit) (c confirmation, err error) {
		found, err := v.operator.Sink(v.ctx(), v.param("name"))
		if err != nil {
			return c, err
		}
		return confirmation{
			title: upperFirst(verb) + " sink " + found.Name, will: will[verb], back: link("sink", "name", found.Name),
			crumb:   found.Name,
			hidden:  []field{{"name", found.Name}, stance{paused: found.PausedAt}.shown()},
			command: "posthaste relay " + verb + " " + shellQuoted(found.Name),
		}, nil
	}
}

// doThing returns the second step, which pauses or resumes a thing while it is as it was previewed.
func doThing(t *thing, act string) func(*visit, *operator.Operator) error {
	do := t.pause
	if verbOf(act) == "resume" {
		do = t.resume
	}
	return doOn(t, act, do)
}

// doOn returns the second step of an act on a thing, which is done while the thing is as it was previewed.
func doOn(t *thing, act string, do actOf) func(*visit, *operator.Operator) error {
	return func(v *visit, o *operator.Operator) (err error) {
		e := operator.AuditEntry{Act: act, Tenant: v.tenant(), Target: cmp.Or(v.param("name"), v.param("id"))}
		if text := v.param("tenant"); text != "" {
			if e.Tenant, err = outbox.ParseID(text); err != nil {
				return unreadable("tenant", "is no tenant’s id")
			}
		}
		return v.actOnThing(o, t, e, do)
	}
}

// jobActs returns the acts that the status of a job allows.
func jobActs(s outbox.Status) []string {
	switch s {
	case outbox.Created:
		return strings.Fields("job-release job-cancel")
	case outbox.Pending, outbox.Retrying:
		return strings.Fields("job-retry job-cancel")
	case outbox.Blocked, outbox.Running:
		return strings.Fields("job-cancel")
	case outbox.Failed, outbox.Dead:
		return strings.Fields("job-retry job-dismiss")
	}
	return nil
}
