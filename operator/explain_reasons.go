package operator

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// maxAhead is where the statements stop counting.
const maxAhead = 10_000

// reasons derives the reasons from the facts, the one that applies first.
func (f *facts) reasons() []Reason {
	switch status := outbox.Status(f.job.Status); {
	case status.Closed():
		return []Reason{f.closed()}
	case status == outbox.Failed || status == outbox.Dead:
		return []Reason{f.deadLetter()}
	case status == outbox.Running:
		return f.running()
	}
	found := slices.Concat(f.ofTheJob(), f.ofTheQueue(), f.ofTheKey(), f.ofTheLimits())
	if f.job.Status == string(outbox.Blocked) && len(f.ofTheKey()) == 0 {
		found = append(found, Reason{Code: WhyKeyFree, Evidence: Evidence{Key: f.job.Key}, Sentence: fmt.Sprintf(
			"It is blocked by its key %q, and nothing of the key is in its way any more: a dispatcher or a reaper makes it pending within seconds.", f.job.Key)})
	}
	return append(found, f.ofTheTurn(len(found) > 0)...)
}

func (f *facts) closed() Reason {
	j := f.job
	r := Reason{
		Code: WhyClosed, Since: j.FinishedAt.Time,
		Sentence: fmt.Sprintf("It ended as %s at %s, and does not run again.", j.Status, moment(j.FinishedAt.Time)),
		Evidence: Evidence{Worker: j.Worker, Attempt: int(j.Attempt)},
	}
	if j.Status != string(outbox.Succeeded) {
		r.ErrorCode, r.ErrorMessage = j.ErrorCode, j.ErrorMessage
	}
	return r
}

func (f *facts) deadLetter() Reason {
	j := f.job
	how := "failed for good"
	if j.Status == string(outbox.Dead) {
		how = fmt.Sprintf("used up its attempts (%d of %d)", j.Attempt, j.MaxAttempts)
	}
	r := Reason{
		Code: WhyDeadLetter, Since: j.FailedAt.Time, Evidence: Evidence{
			Attempt: int(j.Attempt), ErrorCode: j.ErrorCode,
			ErrorMessage: j.ErrorMessage,
		},
		Sentence: fmt.Sprintf("It %s%s%s, and waits for a person.", how, at(j.FailedAt), after(j.ErrorCode)),
		Act:      f.act("retry"),
	}
	if f.late() {
		r.Sentence += " Its deadline has passed: it can only be dismissed."
		r.Act = f.act("dismiss")
	}
	return r
}

func (f *facts) running() (found []Reason) {
	j := f.job
	add := func(code ReasonCode, since pgtype.Timestamptz, act Act, format string, args ...any) {
		found = append(found, Reason{
			Code: code, Since: since.Time, Act: act, Sentence: fmt.Sprintf(format, args...),
			Evidence: Evidence{Worker: j.Worker, Attempt: int(j.Attempt)},
		})
	}
	lapsed := !j.LeaseExpiresAt.Time.After(j.Now.Time)
	if lapsed {
		add(WhyLeaseLapsed, j.LeaseExpiresAt, Act{},
			"The lease of %s lapsed at %s: a reaper gives the job back, unless its handler's transaction is open.",
			j.Worker, moment(j.LeaseExpiresAt.Time))
	}
	if f.late() {
		add(WhyDeadlinePassed, j.Deadline, Act{}, "Its deadline passed at %s while it was running: it ends as expired.",
			moment(j.Deadline.Time))
	}
	if j.CancelRequestedAt.Valid {
		add(WhyCancelRequested, j.CancelRequestedAt, Act{},
			"It is running on %s, and its handler was asked to stop at %s.", j.Worker, moment(j.CancelRequestedAt.Time))
	}
	if !lapsed {
		add(WhyRunning, j.StartedAt, f.act("cancel"),
			"It has been running on %s since %s, attempt %d of %d. The database does not know whether it still waits in the worker's buffer.",
			j.Worker, moment(j.StartedAt.Time), j.Attempt, j.MaxAttempts)
		found[len(found)-1].Until = j.LeaseExpiresAt.Time
	}
	switch {
	case !f.everything:
	case len(f.owner) == 0:
		add(WhyWorkerMissing, pgtype.Timestamptz{}, Act{},
			"%s is not among the dispatchers: it has stopped, or was last seen more than an hour ago.", j.Worker)
	case f.owner[0].Missing:
		add(WhyWorkerMissing, f.owner[0].SeenAt, Act{}, "%s was last seen at %s.", j.Worker,
			moment(f.owner[0].SeenAt.Time))
	}
	return found
}

func (f *facts) late() bool {
	return f.job.Deadline.Valid && !f.job.Deadline.Time.After(f.job.Now.Time)
}

// ofTheJob returns the reasons that lie in the job itself.
func (f *facts) ofTheJob() (found []Reason) {
	j := f.job
	if f.late() {
		found = append(found, Reason{
			Code: WhyDeadlinePassed, Since: j.Deadline.Time,
			Sentence: fmt.Sprintf(
				"Its deadline passed at %s: it cannot start any more, and a reaper closes it as expired.",
				moment(j.Deadline.Time)),
		})
	}
	if j.Status == string(outbox.Created) {
		found = append(found,
			Reason{Code: WhyHeld, Act: f.act("release"), Sentence: "It was enqueued held, and nobody has released it."})
	}
	if f.due() {
		return found
	}
	r := Reason{
		Code: WhyNotDue, Until: j.RunAt.Time, Act: f.act("retry"),
		Sentence: fmt.Sprintf("It is not due until %s.", moment(j.RunAt.Time)),
	}
	if j.RunAt.InfinityModifier == pgtype.Infinity {
		r.Until, r.Sentence = time.Time{}, "It is due at infinity: never."
	}
	switch {
	case j.Status != string(outbox.Retrying) && j.Status != string(outbox.Pending):
		r.Act = Act{} // it must be released or promoted before it can run
	case j.UnavailableSince.Valid:
		r.Code, r.Since = WhyAway, j.UnavailableSince.Time
		r.Sentence = fmt.Sprintf(
			"Its dependency has been unavailable since %s%s. No attempt is spent; it is tried again at %s.",
			moment(j.UnavailableSince.Time), because(j.ErrorCode), moment(j.RunAt.Time))
	case j.Status == string(outbox.Retrying):
		r.Code = WhyRetrying
		r.Sentence = fmt.Sprintf("Attempt %d of %d is due at %s%s.", j.Attempt+1, j.MaxAttempts, moment(j.RunAt.Time),
			after(j.ErrorCode))
	}
	if j.Status == string(outbox.Retrying) {
		r.Attempt, r.ErrorCode, r.ErrorMessage = int(j.Attempt), j.ErrorCode, j.ErrorMessage
	}
	return append(found, r)
}

// ofTheQueue returns the reasons for which the queue is not worked at all.
func (f *facts) ofTheQueue() (found []Reason) {
	j, q := f.job, f.waits
	if q.PausedAt.Valid {
		r := Reason{
			Code: WhyQueuePaused, Since: q.PausedAt.Time, Sentence: fmt.Sprintf("Queue %s has been paused since %s",
				j.Queue, moment(q.PausedAt.Time)),
			Evidence: Evidence{By: q.PausedBy, Because: q.PausedBecause},
			Act:      ResumeAct(j.Queue),
		}
		if q.PausedBy != "" {
			r.Sentence += " by " + q.PausedBy
		}
		if q.PausedBecause != "" {
			r.Sentence += fmt.Sprintf(" (%s)", q.PausedBecause)
		}
		r.Sentence += "."
		found = append(found, r)
	}
	if !f.everything {
		return found
	}
	var works, handles bool
	var workers, handlers []Dispatcher // those that do, or did
	for _, w := range f.workers {
		d := Dispatcher{Name: w.Worker, Version: w.Version, SeenAt: w.SeenAt, Missing: w.Missing}
		if w.WorksQueue {
			works = works || !w.Missing
			workers = append(workers, d)
		}
		if w.WorksQueue && w.HandlesKind {
			handles = handles || !w.Missing
		}
		if w.HandlesKind {
			handlers = append(handlers, d)
		}
	}
	switch {
	case !works:
		found = append(found, Reason{
			Code: WhyNoDispatcher, Since: lastSeen(workers), Evidence: Evidence{Workers: few(workers)},
			Sentence: fmt.Sprintf("No present dispatcher works queue %s: %s.", j.Queue,
				those(workers, "none has been seen recently")),
		})
	case !handles:
		found = append(found, Reason{
			Code: WhyNoHandler, Evidence: Evidence{Workers: few(handlers)},
			Sentence: fmt.Sprintf("No present dispatcher of queue %s has a handler for kind %s: %s.", j.Queue,
				j.Kind, those(handlers, "none has been seen recently")),
		})
	}
	return found
}

// ofTheKey returns the reasons that lie in the job's key.
func (f *facts) ofTheKey() (found []Reason) {
	j, k := f.job, f.waits
	if j.Key == "" {
		return nil
	}
	unblock := UnblockAct(KeyName{Tenant: j.TenantID.Bytes, Queue: j.Queue, Key: j.Key})
	dead := k.HeadStatus == string(outbox.Failed) || k.HeadStatus == string(outbox.Dead)
	isHead := k.HeadID.Valid && k.HeadID == j.ID
	if k.ParkedAt.Valid {
		found = append(found, f.parked(unblock))
	}
	if dead && !isHead {
		r := Reason{
			Code: WhyKeyDeadLetter, Until: k.ParkAt.Time, Act: unblock,
			Evidence: Evidence{
				Key: j.Key, Job: k.HeadID.Bytes, JobStatus: outbox.Status(k.HeadStatus),
				Ahead: k.KeyAhead,
			},
			Sentence: fmt.Sprintf(
				"Its key %q is held up by dead letter %s at the head of its line, with %s before this job.", j.Key,
				outbox.ID(k.HeadID.Bytes), count(k.KeyAhead)),
		}
		if r.Until = (time.Time{}); k.ParkAt.Valid && !k.ParkedAt.Valid {
			r.Sentence += fmt.Sprintf(" The key is parked at %s.", moment(k.ParkAt.Time))
		}
		found = append(found, r)
	}
	if k.KeyRunning > 0 && k.KeyRunning >= int64(j.MaxActive) {
		found = append(found, Reason{
			Code: WhyKeyBusy, Since: k.KeyLongestSince.Time,
			Evidence: Evidence{
				Key: j.Key, Job: k.KeyLongestID.Bytes, JobStatus: outbox.Running,
				Worker: k.KeyLongestWorker, Running: k.KeyRunning, Limit: int64(j.MaxActive), Ahead: k.KeyAhead,
			},
			Sentence: fmt.Sprintf(
				"%d of %d jobs of its key %q that may run at once are running, the longest since %s: %s on %s.",
				k.KeyRunning, j.MaxActive, j.Key, moment(k.KeyLongestSince.Time), outbox.ID(k.KeyLongestID.Bytes),
				k.KeyLongestWorker),
		})
	}
	if k.HeadID.Valid && !isHead && !dead {
		r := Reason{
			Code: WhyKeyBehind, Evidence: Evidence{
				Key: j.Key, Job: k.HeadID.Bytes,
				JobStatus: outbox.Status(k.HeadStatus), Ahead: k.KeyAhead,
			},
			Sentence: fmt.Sprintf("It is behind %s of its key %q; the head of the line, %s, is %s.", count(k.KeyAhead),
				j.Key, outbox.ID(k.HeadID.Bytes), k.HeadStatus),
		}
		if k.HeadRunAt.Time.After(j.Now.Time) {
			r.Sentence = strings.TrimSuffix(r.Sentence, ".") + " until " + moment(k.HeadRunAt.Time) + "."
		}
		found = append(found, r)
	}
	return found
}

// parked returns the reason of a job whose key is parked.
func (f *facts) parked(unblock Act) Reason {
	j, k := f.job, f.waits
	r := Reason{
		Code: WhyKeyParked, Since: k.ParkedAt.Time, Evidence: Evidence{Key: j.Key, Job: k.ParkedFor.Bytes},
		Act:      unblock,
		Sentence: fmt.Sprintf("Its key %q has been parked since %s", j.Key, moment(k.ParkedAt.Time)),
	}
	if k.ParkedFor.Valid {
		r.Sentence += fmt.Sprintf(" because of dead letter %s", r.Job)
	}
	r.Sentence += ": nothing of it starts until somebody unblocks it."
	return r
}

// ofTheLimits returns the reasons that lie in the queue's limits and its workers' capacity.
func (f *facts) ofTheLimits() (found []Reason) {
	j, q := f.job, f.waits
	rate := Rate{Starts: int(q.Rate), Interval: pgvalue.Seconds(q.RateSeconds)}
	if !f.everything {
		if q.MaxRunning > 0 || q.Rate > 0 {
			found = append(found, Reason{
				Code: WhyQueueLimited, Evidence: Evidence{Limit: int64(q.MaxRunning), Rate: rate},
				Sentence: fmt.Sprintf("Queue %s has a limit, for all tenants together (%s): it may be used up.",
					j.Queue, limits(q.MaxRunning, rate)),
			})
		}
		return append(found, f.ofTheDependency()...)
	}
	act := LimitAct(j.Queue)
	if q.MaxRunning > 0 && q.Running >= int64(q.MaxRunning) {
		found = append(found, Reason{
			Code: WhyQueueFull, Since: q.LongestSince.Time, Act: act,
			Evidence: Evidence{
				Running: q.Running, Limit: int64(q.MaxRunning), Job: q.LongestID.Bytes,
				JobStatus: outbox.Running,
			},
			Sentence: fmt.Sprintf("Queue %s is at its limit: %d of %d running, the longest, %s, since %s.",
				j.Queue, q.Running, q.MaxRunning, outbox.ID(q.LongestID.Bytes), moment(q.LongestSince.Time)),
		})
	}
	if until, spent := spentUntil(rate, j.Now.Time, q.StartTimes, q.StartCounts); spent {
		found = append(found, Reason{
			Code: WhyQueueRate, Until: until, Act: act, Evidence: Evidence{Rate: rate},
			Sentence: fmt.Sprintf("The rate of queue %s, %s, is spent until %s.", j.Queue, limits(0, rate),
				moment(until)),
		})
	}
	found = append(found, f.ofTheDependency()...)
	var capacity int64
	for _, w := range f.workers {
		if w.WorksQueue && !w.Missing {
			capacity += int64(w.Concurrency)
		}
	}
	if capacity > 0 && q.Running >= capacity {
		found = append(found, Reason{
			Code: WhyWorkersBusy, Since: q.LongestSince.Time, Evidence: Evidence{
				Running: q.Running, Limit: capacity,
				Job: q.LongestID.Bytes, JobStatus: outbox.Running,
			},
			Sentence: fmt.Sprintf(
				"The dispatchers of queue %s are busy: they run %d jobs at once and hold %d, the longest, %s, since %s.",
				j.Queue, capacity, q.Running, outbox.ID(q.LongestID.Bytes), moment(q.LongestSince.Time)),
		})
	}
	return found
}

// ofTheDependency returns a reason if other jobs of the kind have found its dependency unavailable. ofTheJob covers the
// job itself.
func (f *facts) ofTheDependency() []Reason {
	j, a := f.job, f.waits
	if a.Away == 0 || !f.due() {
		return nil
	}
	return []Reason{{
		Code: WhyAway, Since: a.AwaySince.Time, Until: a.AwayNextTry.Time,
		Evidence: Evidence{ErrorCode: a.AwayErrorCode, ErrorMessage: a.AwayErrorMessage},
		Sentence: fmt.Sprintf(
			"Jobs of kind %s have found their dependency unavailable since %s%s. While that lasts, a dispatcher tries one of them at a time.",
			j.Kind, moment(a.AwaySince.Time), because(a.AwayErrorCode)),
	}}
}

// ofTheTurn returns which jobs precede a due job. It returns a reason whenever there is no other.
func (f *facts) ofTheTurn(others bool) []Reason {
	j, ahead, perSecond := f.job, f.waits.Ahead, f.perSecond()
	waits := f.due() && !f.late() && (j.Status == string(outbox.Pending) || j.Status == string(outbox.Retrying))
	switch {
	case waits && f.unknown:
		return []Reason{{Code: WhyTurn, Since: j.RunAt.Time, Sentence: fmt.Sprintf(
			"It has been due since %s. How many jobs are before it took too long to count: a transaction that is open for long may hold back the cleaning of the table.", moment(j.RunAt.Time))}}
	case waits && ahead > 0:
		r := Reason{
			Code: WhyTurn, Since: j.RunAt.Time, Evidence: Evidence{Ahead: ahead, PerSecond: perSecond},
			Sentence: fmt.Sprintf("It has been due since %s, with %s before it in its tenant's queue at its priority",
				moment(j.RunAt.Time), count(ahead)),
		}
		if perSecond > 0 {
			wait := time.Duration(float64(ahead+1) / perSecond * float64(time.Second))
			r.Until = j.Now.Time.Add(wait)
			r.Sentence += fmt.Sprintf("; of late %.3g a second have ended, which makes it %s", perSecond,
				map[bool]string{true: "later than ", false: "about "}[ahead >= maxAhead]+moment(r.Until))
		}
		r.Sentence += "."
		return []Reason{r}
	case !others:
		return []Reason{{Code: WhyDue, Since: j.RunAt.Time, Sentence: fmt.Sprintf(
			"It has been due since %s, and nothing is known to keep it: the next claim of queue %s takes it.",
			moment(j.RunAt.Time), j.Queue)}}
	}
	return nil
}

// spentUntil returns when the next start is allowed, if none is now: as for dispatchers, a start counts for the
// interval after it.
func spentUntil(rate Rate, now time.Time, times []pgtype.Timestamptz, counts []int32) (until time.Time, spent bool) {
	type start struct {
		ends time.Time
		n    int
	}
	var counted []start
	total := 0
	for i, at := range times {
		if age := now.Sub(at.Time); i < len(counts) && age < rate.Interval && age >= -rate.Interval {
			counted = append(counted, start{at.Time.Add(rate.Interval), int(counts[i])})
			total += int(counts[i])
		}
	}
	if rate.Starts == 0 || total < rate.Starts {
		return time.Time{}, false
	}
	slices.SortFunc(counted, func(a, b start) int { return a.ends.Compare(b.ends) })
	for _, s := range counted {
		if total -= s.n; total < rate.Starts {
			return s.ends, true
		}
	}
	return time.Time{}, false
}

// ResumeAct returns the act that resumes a queue.
func ResumeAct(queue string) Act {
	return Act{"posthaste queues resume " + word(queue), "POST", "/queues/" + url.PathEscape(queue) + "/resume"}
}

// LimitAct returns the act that changes the limits of a queue.
func LimitAct(queue string) Act {
	return Act{"posthaste queues limit --max-running N --rate N/INTERVAL " + word(queue), "POST", "/queues/" +
		url.PathEscape(queue) + "/limits"}
}

// UnblockAct returns the act that unblocks a key.
func UnblockAct(name KeyName) Act {
	tenant, flag := name.Tenant.String(), ""
	if name.Tenant != outbox.RootTenant { // which the command line takes without one
		flag = " --tenant " + tenant
	}
	return Act{
		"posthaste keys unblock --queue " + word(name.Queue) + flag + " " + word(name.Key),
		"POST", "/keys/" + url.PathEscape(name.Queue) + "/" + url.PathEscape(name.Key) + "/unblock?tenant=" + tenant,
	}
}

// ReplayAct returns the act that replays the dead letters of a group that there are by now.
func ReplayAct(g DeadLetterGroup, tenant outbox.ID) Act {
	line := "posthaste dlq replay --fingerprint " + word(g.Fingerprint) + " --kind " + word(g.Kind) + " --failed-until " +
		g.Newest.Add(time.Microsecond).UTC().Format(time.RFC3339Nano)
	if !tenant.IsZero() {
		line += " --tenant " + tenant.String()
	}
	return Act{line, "POST", "/dead-letters/replay"}
}

// act returns an act on the job itself.
func (f *facts) act(verb string) Act {
	id := outbox.ID(f.job.ID.Bytes).String()
	return Act{"posthaste jobs " + verb + " " + id, "POST", "/jobs/" + id + "/" + verb}
}

func moment(t time.Time) string { return Presentable(t).Format(time.RFC3339) }

func at(t pgtype.Timestamptz) string {
	if !t.Valid {
		return ""
	}
	return " at " + moment(t.Time)
}

func after(code string) string {
	if code == "" {
		return ""
	}
	return ", after error " + code
}

func because(code string) string {
	if code == "" {
		return ""
	}
	return " (" + code + ")"
}

func count(n int64) string {
	switch {
	case n >= maxAhead:
		return fmt.Sprintf("%d jobs or more", n)
	case n == 1:
		return "1 job"
	}
	return fmt.Sprintf("%d jobs", n)
}

func limits(maxRunning int32, rate Rate) string {
	var all []string
	if maxRunning > 0 {
		all = append(all, fmt.Sprintf("%d running at once", maxRunning))
	}
	if rate.Starts > 0 {
		all = append(all, fmt.Sprintf("%d starts in %s", rate.Starts, rate.Interval))
	}
	return strings.Join(all, ", ")
}

const fewWorkers = 10

func few(workers []Dispatcher) []Dispatcher { return workers[:min(len(workers), fewWorkers)] }

func lastSeen(workers []Dispatcher) (last time.Time) {
	for _, w := range workers {
		if w.SeenAt.After(last) {
			last = w.SeenAt
		}
	}
	return last
}

func those(workers []Dispatcher, none string) string {
	if len(workers) == 0 {
		return none
	}
	var names []string
	for _, w := range workers[:min(len(workers), 3)] {
		names = append(names, fmt.Sprintf("%s (%s) was last seen at %s", w.Name, w.Version, moment(w.SeenAt)))
	}
	return strings.Join(names, ", ")
}

// word returns text as one word of a shell's command line.
func word(text string) string {
	if text != "" && strings.IndexFunc(text, func(c rune) bool {
		return !strings.ContainsRune("_-.:/@%+,", c) && (c < '0' || c > '9') && (c < 'a' || c > 'z') &&
			(c < 'A' || c > 'Z')
	}) < 0 && text[0] != '-' {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
