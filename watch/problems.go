package watch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Problem is something that is wrong now.
type Problem struct {
	Kind     string          // one of ProblemKinds
	Severity doctor.Severity // Problem: jobs do not run, or will not; otherwise Warning
	Sentence string
	Since    time.Time // zero if not known
	Evidence
	Do  string       // in words; "" if the remedy is only a command
	Act operator.Act // zero if there is no command for it
}

// Evidence is what a problem is about. Fields that do not apply are zero.
type Evidence struct {
	Tenant      outbox.ID
	Queue       string
	JobKind     string
	Key         string
	Fingerprint string
	ErrorCode   string
	Message     string    // of an error
	Job         outbox.ID // an example, or the dead letter for which a key is parked
	Schedule    string
	Worker      string
	Sink        string
	Jobs        int64
}

// Findings are the problems at an instant, the worst first.
type Findings struct {
	AsOf     time.Time
	Problems []Problem // up to 20 of a kind
	More     []More    // what that leaves out, by kind
}

// More are problems of a kind that are left out, because there are so many worse ones of it.
type More struct {
	Kind    string
	Count   int
	AtLeast bool // there may be more than Count
}

// These are the kinds of problems. Package doctor finds those of the installation, which are only for viewers of all
// tenants.
const (
	DeadLetters        = "dead_letters"         // jobs that failed alike; Problem while they grow
	NoHandler          = "no_handler"           // due jobs of a kind that no present dispatcher handles
	LeaseLapsed        = "lease_lapsed"         // running jobs that no reaper takes back
	Late               = "late"                 // due jobs of a queue that is worked
	QueueFull          = "queue_full"           // due jobs of a queue at its limit
	QueuePaused        = "queue_paused"         // a paused queue with jobs
	KeyParked          = "key_parked"           // a key that starts no jobs
	DependencyAway     = "dependency_away"      // a kind's dependency is unavailable
	ScheduleOverdue    = "schedule_overdue"     // a tick that has not fired
	WorkerMissing      = "worker_missing"       // a dispatcher that is silent
	WorkerNotListening = "worker_not_listening" // a dispatcher that notifications do not reach
	Installation       = "installation"         // of the server, the schema, vacuum, tables, sinks or bridges
	Unanswered         = "unanswered"           // a question that could not be answered
)

// ProblemKinds returns every kind of problem.
func ProblemKinds() []string {
	return []string{
		DeadLetters, NoHandler, LeaseLapsed, Late, QueueFull, QueuePaused, KeyParked, DependencyAway, ScheduleOverdue,
		WorkerMissing, WorkerNotListening, Installation, Unanswered,
	}
}

const (
	foundFor    = 20 * time.Second // how long findings are shown before the next search
	lateAfter   = time.Minute      // a due job is then late, a tick overdue
	growing     = 5 * time.Minute  // dead letters no older than this make their group grow
	mostOfAKind = 20               // problems: more would not help a person
	oneMore     = mostOfAKind + 1  // asked for, to know whether there are more
	maxTenants  = 1000             // whose findings are cached
)

// Problems finds what is wrong. However many viewers there are, a tenant's problems are searched for at most once in 20
// seconds, or in 30 if the search takes more than half a second, and after an act; and not at all while there are no
// viewers.
type Problems struct {
	operator *operator.Operator
	doctor   *Examinations
	complain func(context.Context, error)

	shared shared[outbox.ID, Findings] // by tenant; zero means all
}

// NewProblems returns Problems that query through o and e. complain receives the error of each question that is not
// answered, which a tenant's findings do not name; nil drops it.
func NewProblems(o *operator.Operator, e *Examinations, complain func(context.Context, error)) *Problems {
	if complain == nil {
		complain = func(context.Context, error) {}
	}
	return &Problems{operator: o, doctor: e, complain: complain}
}

// Look returns the problems of a tenant's jobs or, if it is zero, of all jobs and of the installation. They are at most
// 30 seconds old.
func (p *Problems) Look(ctx context.Context, tenant outbox.ID) (Findings, error) {
	return p.shared.look(ctx, tenant, foundFor, maxTenants, func(ctx context.Context) (Findings, error) {
		return p.search(ctx, tenant)
	})
}

// Known returns the problems that were found last, within a minute; ok is false if nobody has asked for them. It
// searches for none.
func (p *Problems) Known(tenant outbox.ID) (found Findings, ok bool) {
	return p.shared.known(tenant, time.Minute)
}

// Outdate drops what was found: the next caller searches again.
func (p *Problems) Outdate() { p.shared.forget() }

// search asks each question. An unanswered question is a problem itself; if none is answered, search returns an error.
func (p *Problems) search(ctx context.Context, tenant outbox.ID) (Findings, error) {
	ctx = operator.WithTenant(ctx, tenant)
	now, err := p.operator.Now(ctx)
	if err != nil {
		return Findings{}, err
	}
	l := look{Problems: p, tenant: tenant, now: now.UTC()}
	type question struct {
		name string
		ask  func(context.Context) error
	}
	questions := []question{{"schedules", l.schedules}, {"keys", l.keys}}
	if tenant.IsZero() {
		questions = append(questions, question{"installation", l.installation})
	}
	// The questions that read all open jobs and all dead letters come last, and get the remaining time.
	questions = append(questions, question{"jobs", l.jobs}, question{"dead letters", l.deadLetters})
	var failed []error
	for _, q := range questions {
		if err := q.ask(ctx); err != nil {
			failed = append(failed, err)
			p.complain(ctx, fmt.Errorf("what is wrong with %s: %w", q.name, err))
			unanswered := Problem{
				Kind: Unanswered, Severity: doctor.Problem,
				Sentence: fmt.Sprintf("What is wrong with %s is not known: %v.", q.name, err),
			}
			if !tenant.IsZero() { // it must not see the database's names and addresses
				unanswered.Sentence = fmt.Sprintf("What is wrong with %s is not known; the server's log says why.",
					q.name)
			}
			l.find(unanswered)
		}
	}
	if len(failed) == len(questions) {
		return Findings{}, failed[0]
	}
	found, more := worst(l.found)
	return Findings{AsOf: l.now, Problems: found, More: more}, nil
}

// worst returns problems with the worst first, and up to mostOfAKind of each kind, and counts the others.
func worst(all []Problem) (found []Problem, more []More) {
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Jobs, a.Jobs))
	})
	ofKind := map[string]int{}
	for _, p := range all {
		if ofKind[p.Kind]++; ofKind[p.Kind] <= mostOfAKind {
			found = append(found, p)
		}
	}
	for _, kind := range ProblemKinds() {
		if n := ofKind[kind] - mostOfAKind; n > 0 {
			asked := kind == DeadLetters || kind == KeyParked || kind == ScheduleOverdue // for oneMore
			more = append(more, More{kind, n, asked})
		}
	}
	return found, more
}

// verb returns the form of a verb for so many jobs.
func verb(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func rank(p Problem) int {
	return map[doctor.Severity]int{doctor.Problem: 0, doctor.Warning: 1}[p.Severity]
}

// look is one search.
type look struct {
	*Problems
	tenant outbox.ID
	now    time.Time
	found  []Problem
}

func (l *look) find(p Problem) { l.found = append(l.found, p) }

// queue is the state of one queue in jobs.
type queue struct {
	operator.Queue
	waiting, due, running int64
	oldest                time.Time // due, of a kind with a handler
}

// jobs finds late jobs and the reasons.
func (l *look) jobs(ctx context.Context) error {
	kinds, err := l.operator.Survey(ctx, l.tenant)
	if err != nil {
		return err
	}
	rules, err := l.operator.QueueRules(ctx)
	if err != nil {
		return err
	}
	var workers []operator.Worker
	if l.tenant.IsZero() { // a single tenant does not see dispatchers
		if workers, err = l.operator.Workers(ctx); err != nil {
			return err
		}
	}
	queues := map[string]*queue{}
	for _, rule := range rules {
		queues[rule.Name] = &queue{Queue: rule}
	}
	for _, k := range kinds {
		q := queues[k.Queue]
		if q == nil {
			q = &queue{Queue: operator.Queue{Name: k.Queue}}
			queues[k.Queue] = q
		}
		l.kind(k, q, workers)
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		l.queue(queues[name])
	}
	l.workers(workers)
	return nil
}

// kind examines the jobs of a kind in a queue, and adds them to the queue's.
func (l *look) kind(k operator.OpenKind, q *queue, workers []operator.Worker) {
	q.waiting, q.due, q.running = q.waiting+k.Waiting, q.due+k.Due, q.running+k.Running
	about := Evidence{Queue: k.Queue, JobKind: k.Kind, Jobs: k.Due, Tenant: l.tenant}
	handled := !l.tenant.IsZero() || slices.ContainsFunc(workers, func(w operator.Worker) bool {
		_, works := w.Queues[k.Queue]
		return works && !w.Missing && slices.Contains(w.Kinds, k.Kind)
	})
	switch {
	case k.Due > 0 && !handled && q.PausedSince.IsZero():
		l.find(Problem{
			Kind: NoHandler, Severity: doctor.Problem, Since: k.OldestDue, Evidence: about,
			Sentence: fmt.Sprintf(
				"%s of kind %s in queue %s %s due, and no present dispatcher of the queue has a handler.",
				doctor.Count(k.Due, "job"), k.Kind, k.Queue, verb(k.Due, "is", "are")),
			Do: "Start a program that has a handler for the kind and works the queue.",
		})
	case k.Due > 0 && (q.oldest.IsZero() || k.OldestDue.Before(q.oldest)):
		q.oldest = k.OldestDue
	}
	if !k.UnavailableSince.IsZero() {
		about := about
		about.Jobs = k.Waiting
		l.find(Problem{
			Kind: DependencyAway, Severity: doctor.Warning, Since: k.UnavailableSince, Evidence: about,
			Sentence: fmt.Sprintf(
				"What kind %s of queue %s needs is unavailable: its jobs wait, and spend no attempts.", k.Kind,
				k.Queue),
			Do: "Look at what its handler needs: the log has the error. The jobs start by themselves when it is back.",
		})
	}
	if k.Lapsed > 0 && l.tenant.IsZero() {
		about.Jobs = k.Lapsed
		l.find(Problem{
			Kind: LeaseLapsed, Severity: doctor.Problem, Since: k.OldestLease, Evidence: about,
			Sentence: fmt.Sprintf(
				"The leases of %s of kind %s in queue %s have lapsed, and nobody has taken the jobs back.",
				doctor.Count(k.Lapsed, "running job"), k.Kind, k.Queue),
			Do: "Run a reaper: OUTBOX_REAP=on in at least one process.",
		})
	}
}

func (l *look) queue(q *queue) {
	about := Evidence{Queue: q.Name, Jobs: q.waiting, Tenant: l.tenant}
	late := !q.oldest.IsZero() && l.now.Sub(q.oldest) > lateAfter
	switch {
	case !q.PausedSince.IsZero() && q.waiting > 0:
		l.find(Problem{
			Kind: QueuePaused, Severity: doctor.Warning, Since: q.PausedSince, Evidence: about,
			Act: operator.ResumeAct(q.Name),
			Sentence: fmt.Sprintf("Queue %s is paused, and %s in it %s.", q.Name, doctor.Count(q.waiting, "job"),
				verb(q.waiting, "waits", "wait")),
		})
	case !q.PausedSince.IsZero():
	case late && l.tenant.IsZero() && q.MaxRunning > 0 && q.running >= int64(q.MaxRunning):
		about.Jobs = q.due
		l.find(Problem{
			Kind: QueueFull, Severity: doctor.Warning, Since: q.oldest, Evidence: about, Act: operator.LimitAct(q.Name),
			Sentence: fmt.Sprintf("Queue %s is at its limit, %d of %d running, and %s %s due.", q.Name, q.running,
				q.MaxRunning, doctor.Count(q.due, "job"), verb(q.due, "is", "are")),
		})
	case late:
		about.Jobs = q.due
		l.find(Problem{
			Kind: Late, Severity: doctor.Warning, Since: q.oldest, Evidence: about,
			Sentence: fmt.Sprintf("%s of queue %s %s due%s for more than a minute.", doctor.Count(q.due, "job"), q.Name,
				verb(q.due, "is", "are"), verb(q.due, "", ", the first")),
			Do: "Add dispatchers or concurrency, or see what they wait for.",
		})
	}
}

func (l *look) workers(workers []operator.Worker) {
	for _, w := range workers {
		about := Evidence{Worker: w.Name, Jobs: w.Running}
		switch {
		case w.Missing:
			l.find(Problem{
				Kind: WorkerMissing, Severity: doctor.Warning, Since: w.SeenAt, Evidence: about,
				Sentence: fmt.Sprintf("Dispatcher %s (%s) is silent.", w.Name, w.Version),
				Do:       "See whether it was killed or cannot reach the database; its jobs run elsewhere.",
			})
		case !w.Listening && w.SeenAt.After(w.StartedAt): // its first row is written before it can hear
			l.find(Problem{
				Kind: WorkerNotListening, Severity: doctor.Warning, Evidence: about,
				Sentence: fmt.Sprintf("Dispatcher %s is not listening: notifications do not reach it, and it polls.", w.Name),
				Do:       "See what posthaste doctor finds of wake-ups, and the dispatcher's /readyz.",
			})
		}
	}
}

// deadLetters finds dead letters.
func (l *look) deadLetters(ctx context.Context) error {
	groups, err := l.operator.GrowingDeadLetterGroups(ctx, operator.DeadLetterFilter{Tenant: l.tenant}, growing,
		oneMore)
	if err != nil {
		return err
	}
	for _, g := range groups {
		p := Problem{
			Kind: DeadLetters, Severity: doctor.Warning, Since: g.Oldest,
			Sentence: fmt.Sprintf("%s of kind %s failed", doctor.Count(g.Jobs, "job"), g.Kind),
			Evidence: Evidence{
				JobKind: g.Kind, Fingerprint: g.Fingerprint, ErrorCode: g.ErrorCode, Message: g.Message,
				Job: g.Example, Jobs: g.Jobs, Tenant: l.tenant,
			},
		}
		if g.Fingerprint != "" { // otherwise no filter selects them
			p.Act = operator.ReplayAct(g, l.tenant)
		}
		if g.Jobs > 1 {
			p.Sentence += " alike"
		}
		if g.Grows {
			p.Severity = doctor.Problem
		}
		p.Sentence += ": " + cmp.Or(g.ErrorCode, "no code") + "."
		if g.Grows && g.Jobs > 1 {
			p.Sentence += " Their number grows."
		}
		l.find(p)
	}
	return nil
}

// keys finds parked keys.
func (l *look) keys(ctx context.Context) error {
	keys, err := l.operator.Keys(ctx, operator.KeyFilter{Parked: true, Tenant: l.tenant, Limit: oneMore})
	if err != nil {
		return err
	}
	for _, k := range keys {
		l.find(Problem{
			Kind: KeyParked, Severity: doctor.Warning, Since: k.ParkedSince,
			Sentence: fmt.Sprintf("Key %q of queue %s is parked, and %s of it %s.", k.Key, k.Queue,
				doctor.Count(k.Blocked+k.Waiting, "job"), verb(k.Blocked+k.Waiting, "waits", "wait")),
			Evidence: Evidence{
				Tenant: k.Tenant, Queue: k.Queue, Key: k.Key, Job: k.ParkedFor,
				Jobs: k.Blocked + k.Waiting,
			},
			Act: operator.UnblockAct(k.KeyName),
		})
	}
	return nil
}

// schedules finds schedules that have not fired.
func (l *look) schedules(ctx context.Context) error {
	schedules, err := l.operator.OverdueSchedules(ctx, l.tenant, lateAfter, oneMore)
	if err != nil {
		return err
	}
	for _, s := range schedules {
		l.find(Problem{
			Kind: ScheduleOverdue, Severity: doctor.Problem, Since: s.NextAt,
			Evidence: Evidence{Tenant: s.Tenant, Schedule: s.Name, JobKind: s.Kind, Queue: s.Queue},
			Sentence: fmt.Sprintf("Schedule %s has not fired.", s.Name),
			Do:       "Run a scheduler, and see its log: a declaration that is refused does not fire.",
		})
	}
	return nil
}

// installation asks package doctor, except about workers and jobs, which are examined here.
func (l *look) installation(ctx context.Context) error {
	x, err := l.doctor.brief.Look(ctx, foundFor)
	for _, f := range x.Findings {
		if f.Severity != doctor.OK {
			p := Problem{
				Kind: Installation, Severity: f.Severity, Sentence: f.Question + ": " + f.What, Do: f.Do,
				Evidence: Evidence{Sink: f.Sink},
			}
			if f.Sink != "" && f.What != "" {
				p.Sentence = strings.ToUpper(f.What[:1]) + f.What[1:]
			}
			l.find(p)
		}
	}
	return err
}
