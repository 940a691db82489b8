package console

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// shownQueue is a queue with everything that is shown of it.
type shownQueue struct {
	operator.Queue
	asOf    time.Time      // when its jobs were counted
	running []operator.Job // the longest running ones
	more    bool           // there are more of them
	workers []operator.Worker
	audit   []operator.AuditEntry
	done    doneAct
	chart   charted
}

// atLimit reports whether the maximum number of jobs of a queue are running.
func atLimit(q operator.Queue) bool {
	return q.MaxRunning > 0 && q.Jobs[outbox.Running] >= int64(q.MaxRunning)
}

// counted returns the queues with the open jobs that the viewer may see, by the latest count, and their present rules.
func (v *visit) counted() (queues []operator.Queue, asOf time.Time, err error) {
	count, err := v.site.watch.Counts.Look(v.ctx(), v.tenant())
	if err != nil {
		return nil, asOf, err
	}
	rules, err := v.operator.QueueRules(v.ctx())
	if err != nil {
		return nil, asOf, err
	}
	return count.Jobs.In(rules), count.AsOf, nil
}

func (s *site) queues(v *visit) error {
	queues, asOf, err := v.counted()
	if err != nil {
		return err
	}
	lines, err := v.sparks(false)
	if err != nil {
		return err
	}
	return v.render(queuesPage(v, queues, lines, asOf))
}

const runningShown = 10

func (s *site) queue(v *visit) (err error) {
	q, err := s.queueOf(v)
	if err != nil {
		return err
	}
	if q.done, err = v.justDone(queueStanding(q.Queue)); err != nil {
		return err
	}
	running, err := v.operator.LongestRunning(v.ctx(), q.Name, v.tenant(), runningShown+1)
	if err != nil {
		return err
	}
	q.more = len(running) > runningShown
	q.running = running[:min(len(running), runningShown)]
	if v.who.AllTenants {
		workers, err := v.operator.Workers(v.ctx())
		if err != nil {
			return err
		}
		for _, w := range workers {
			if _, works := w.Queues[q.Name]; works {
				q.workers = append(q.workers, w)
			}
		}
	}
	if q.audit, err = v.operator.QueueActs(v.ctx(), q.Name, v.tenant(), 10); err != nil {
		return err
	}
	if q.chart, err = v.chart(q.Name, ""); err != nil {
		return err
	}
	return v.render(queuePage(v, q))
}

// queueOf returns the queue that the parameters name, with its jobs and rules. An unknown queue has none.
func (s *site) queueOf(v *visit) (shownQueue, error) {
	name := v.param("queue")
	if name == "" {
		return shownQueue{}, refusal{http.StatusBadRequest, "Which queue?", "The address names none."}
	}
	count, err := s.watch.Counts.Look(v.ctx(), v.tenant())
	if err != nil {
		return shownQueue{}, err
	}
	q, err := v.operator.QueueRule(v.ctx(), name)
	if err != nil {
		return shownQueue{}, err
	}
	return shownQueue{Queue: count.Jobs.Of(q), asOf: count.AsOf}, nil
}

func (s *site) askPause(v *visit) error {
	q, err := s.queueOf(v)
	if err != nil {
		return err
	}
	c := s.pauseOrResume(v, q.Queue, true)
	return v.render(confirmPage(v, c))
}

func (s *site) askResume(v *visit) error {
	q, err := s.queueOf(v)
	if err != nil {
		return err
	}
	return v.render(confirmPage(v, s.pauseOrResume(v, q.Queue, false)))
}

func (s *site) pauseOrResume(v *visit, q operator.Queue, pause bool) confirmation {
	c := confirmation{
		title: "Resume queue " + q.Name, action: "queue-resume", label: "Resume the queue",
		back: link("queue", "queue", q.Name), crumb: q.Name,
		hidden:  []field{{"queue", q.Name}, queueStanding(q).shown()},
		command: "posthaste queues resume " + shellQuoted(q.Name),
		will: []string{
			fmt.Sprintf("%s waiting may start again, in all processes, as soon as workers are free.",
				plural(int(waiting(q)), "job")),
			"It can be undone: pause the queue again.",
		},
	}
	if pause {
		c.title, c.action, c.label, c.command = "Pause queue "+q.Name, "queue-pause", "Pause the queue",
			"posthaste queues pause "+shellQuoted(q.Name)
		c.will = []string{
			fmt.Sprintf("No process starts jobs of this queue any more; %s waiting now.",
				plural(int(waiting(q)), "job")),
			fmt.Sprintf("%s running now, and go on to their end.", plural(int(q.Jobs[outbox.Running]), "job")),
			"New jobs are stored as before. It can be undone: resume the queue.",
		}
	}
	return c
}

// waiting returns how many jobs of a queue could start, now or later.
func waiting(q operator.Queue) int64 {
	return q.Jobs[outbox.Pending] + q.Jobs[outbox.Retrying] + q.Jobs[outbox.Blocked]
}

func (s *site) pause(v *visit) error {
	return v.actOnQueue(func(o *operator.Operator, queue string) error {
		return v.actOnThing(o, &queueThing, operator.AuditEntry{Act: "queue.pause", Queue: queue}, queueThing.pause)
	})
}

func (s *site) resume(v *visit) error {
	return v.actOnQueue(func(o *operator.Operator, queue string) error {
		return v.actOnThing(o, &queueThing, operator.AuditEntry{Act: "queue.resume", Queue: queue}, queueThing.resume)
	})
}

func (v *visit) actOnQueue(act func(*operator.Operator, string) error) error {
	queue := v.param("queue")
	if err := act(v.operator.Because(v.param("reason")), queue); err != nil {
		return err
	}
	return v.redirect(v.withDone(link("queue", "queue", queue)))
}

func (s *site) askLimits(v *visit) error {
	q, err := s.queueOf(v)
	if err != nil {
		return err
	}
	return v.render(limitsPage(v, q.Queue, limitsForm{
		shown: limitsShown(q.Queue), running: numberOrEmpty(q.MaxRunning), starts: numberOrEmpty(q.Rate.Starts),
		interval: cmp.Or(intervalText(q.Rate.Interval), "1s"),
	}))
}

// limitsForm is the content of the form of a queue's limits.
type limitsForm struct {
	shown                            string // the limits that the queue had when the form was made
	running, starts, interval, fault string
}

// limitsShown returns limits in the form in which a page sends along what it has shown.
func limitsShown(q operator.Queue) string { return cmp.Or(limitsText(q), "none") }

// limit sets both limits, if they still are those that the page has shown; an empty field lifts one.
func (s *site) limit(v *visit) error {
	form := limitsForm{
		shown: v.param("shown"), running: v.param("running"), starts: v.param("starts"), interval: v.param("interval"),
	}
	if form.shown == "" {
		return unreadable("shown", "is missing")
	}
	limits, fault := form.read()
	if fault != "" {
		form.fault, v.status = fault, http.StatusBadRequest
		return v.render(limitsPage(v, operator.Queue{Name: v.param("queue")}, form))
	}
	return v.actOnQueue(func(o *operator.Operator, queue string) error {
		changed, now := false, operator.Queue{}
		err := o.InSnapshot(v.ctx(), func(o *operator.Operator) (err error) {
			now, err = o.QueueRule(v.ctx(), queue)
			if changed = err == nil && limitsShown(now) != form.shown; err != nil || changed {
				return err
			}
			_, _, err = o.Limit(v.ctx(), queue, limits)
			return err
		})
		if changed {
			return v.changedSince(queueStanding(now), operator.AuditEntry{Act: "queue.limit", Queue: queue}, &queueThing)
		}
		return othersAct(err)
	})
}

func (f limitsForm) read() (limits operator.Limits, fault string) {
	limits = operator.Limits{MaxRunning: new(0), Rate: &operator.Rate{}}
	var err error
	if f.running != "" {
		if *limits.MaxRunning, err = strconv.Atoi(f.running); err != nil || *limits.MaxRunning < 1 ||
			*limits.MaxRunning > operator.MaxRunningLimit {
			return limits, fmt.Sprintf("Jobs at once is a number from 1 to %d, or empty for any number.",
				operator.MaxRunningLimit)
		}
	}
	if f.starts != "" {
		if limits.Rate.Starts, err = strconv.Atoi(f.starts); err != nil || limits.Rate.Starts < 1 ||
			limits.Rate.Starts > operator.MaxRateStarts {
			return limits, fmt.Sprintf("Starts is a number from 1 to %d, or empty for any number.",
				operator.MaxRateStarts)
		}
		if limits.Rate.Interval, err = time.ParseDuration(f.interval); err != nil ||
			limits.Rate.Interval < operator.MinRateInterval || limits.Rate.Interval > operator.MaxRateInterval {
			return limits, "The interval is a time like 1s, 5m or 24h."
		}
	}
	return limits, ""
}

func numberOrEmpty(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// intervalText returns an interval in the form of the page and the command line.
func intervalText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// limitsText describes the limits of a queue; "" if there are none.
func limitsText(q operator.Queue) string {
	var words []string
	if q.MaxRunning > 0 {
		words = append(words, fmt.Sprintf("%d at once", q.MaxRunning))
	}
	if q.Rate.Starts > 0 {
		words = append(words, fmt.Sprintf("%d in %s", q.Rate.Starts, intervalText(q.Rate.Interval)))
	}
	return strings.Join(words, ", ")
}

// noQueueActs returns why the viewer may not act on queues; "" if they may.
func (v *visit) noQueueActs() string {
	switch {
	case v.readOnly() != "":
		return "Read-only: " + v.readOnly()
	case !v.can(access.AdminMutate):
		return "Needs admin.mutate"
	case !v.who.AllTenants:
		return "Queues are shared by all tenants: needs a login that sees all of them"
	}
	return ""
}

// jobsOf returns how many jobs of a queue have one of the statuses.
func jobsOf(q operator.Queue, statuses ...outbox.Status) (n int64) {
	for _, s := range statuses {
		n += q.Jobs[s]
	}
	return n
}
