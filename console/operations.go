package console

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An act on many jobs is an operation: the processes that serve the API or the console do it, even when the person has
// closed the tab, and it can be stopped.

const operationsShown = 50

func (s *site) operations(v *visit) error {
	var before outbox.ID
	if text := v.param("before"); text != "" {
		var err error
		if before, err = outbox.ParseID(text); err != nil {
			return unreadable("before", "is no operation’s id")
		}
	}
	all, err := v.operator.Operations(v.ctx(), v.tenant(), before, operationsShown)
	if err != nil {
		return err
	}
	return v.render(operationsPage(v, all, !before.IsZero()))
}

func (s *site) operation(v *visit) error {
	id, err := outbox.ParseID(v.param("id"))
	if err != nil {
		return unreadable("id", "is no operation’s id")
	}
	found, err := v.operator.Operation(v.ctx(), v.tenant(), id)
	if err != nil {
		return err
	}
	if !v.tenant().IsZero() {
		found = found.ForTenant()
	}
	done, err := v.justDone(operationStanding(found))
	if err != nil {
		return err
	}
	others, err := v.others(found)
	if err != nil {
		return err
	}
	v.over = !found.FinishedAt.IsZero()
	return v.render(operationPage(v, found, done, others))
}

// askLetters returns the first step of an act on the dead letters of a filter: it counts them, and the form applies to
// those.
func askLetters(act operator.OperationAct) func(*visit) (confirmation, error) {
	return func(v *visit) (c confirmation, err error) {
		filter, err := v.letterFilter()
		if err != nil {
			return c, err
		}
		c = confirmation{back: link("operations"), crumb: "Dead letters", reason: true, many: true}
		if v.r.Method == "POST" {
			return c, nil
		}
		counted, err := v.operator.MatchDeadLetters(v.ctx(), filter)
		if err != nil {
			return c, err
		}
		c.back, filter.FailedUntil = link("letters"), counted.FailedUntil
		for _, name := range v.conditions() {
			value := v.param(name)
			if name == "since" { // relative to when the page was made
				value = filter.FailedSince.UTC().Format(time.RFC3339Nano)
			}
			c.hidden = append(c.hidden, field{name, value})
		}
		at := counted.FailedUntil.UTC().Format(time.RFC3339Nano)
		c.hidden = append(c.hidden, field{"failed_until", at}, field{"matched", strconv.FormatInt(counted.Matched, 10)})
		c.matched = counted.Matched
		letters, err := v.operator.DeadLetters(v.ctx(), filter, outbox.ID{}, sampleSize)
		if err != nil {
			return c, err
		}
		for _, l := range letters {
			c.sample = append(c.sample, l.Job)
		}
		parts, err := v.operator.SplitDeadLetters(v.ctx(), filter)
		if err != nil {
			return c, err
		}
		c.split = v.splitOf(parts, counted.Matched)
		jobs := plural(int(counted.Matched), "dead letter")
		if c.will = willOfLetters(act, counted.Matched, instant(counted.FailedUntil), parts); act == operator.ReplayLetters {
			c.title, c.rate = "Run "+jobs+" again", true
		} else {
			c.title, c.danger = "Dismiss "+jobs, true
		}
		if counted.Unsettled {
			c.will = append(c.will, "A transaction that was writing when they were counted has not ended: if it stores a "+
				"letter that failed before then, that is one more.")
		}
		c.command = lettersCommand(string(act), filter, at)
		return c, nil
	}
}

// willOfLetters describes an act on so many dead letters that failed before an instant.
func willOfLetters(act operator.OperationAct, matched int64, until string, parts []operator.LetterPart) []string {
	jobs := plural(int(matched), "dead letter")
	const last = "It goes on without this page, shows how far it is, and can be stopped."
	if act == operator.ReplayLetters {
		return []string{
			jobs + " that failed before " + until +
				" become pending again, with all their attempts. What dies later is not touched.",
			lateWords(parts, matched),
			"A letter that somebody else has acted on meanwhile is left alone.",
			"It cannot be undone: what has run again has run. Those that wait can be cancelled.",
			last,
		}
	}
	return []string{
		jobs + " that failed before " + until +
			" move to the history as dismissed, and never run again. What dies later is not touched.",
		"It cannot be undone.",
		last,
	}
}

// lateWords returns a sentence on the letters whose deadline has passed, of which only those in parts are known.
func lateWords(parts []operator.LetterPart, matched int64) string {
	var late, read int64
	for _, p := range parts {
		late, read = late+p.PastDeadline, read+p.Jobs
	}
	if read < matched {
		return "Of the " + number(read) + " that were looked at, the deadline has passed of " + number(late) +
			". One whose deadline has passed is left alone, and can only be dismissed."
	}
	switch late {
	case 0:
		return "None has a deadline that has passed; one whose deadline passes meanwhile is left alone."
	case 1:
		return "Of 1 the deadline has passed: it is left alone, and can only be dismissed."
	}
	return "Of " + number(late) + " the deadline has passed: they are left alone, and can only be dismissed."
}

// splitOf returns how many of the letters are of each kind, queue, tenant and error, in words, the most first.
func (v *visit) splitOf(parts []operator.LetterPart, matched int64) (split []field) {
	var read int64
	for _, p := range parts {
		read += p.Jobs
	}
	if read < matched {
		split = append(split, field{"The newest", number(read)})
	}
	of := map[string]func(operator.LetterPart) string{
		"Kinds":   func(p operator.LetterPart) string { return p.Kind },
		"Queues":  func(p operator.LetterPart) string { return p.Queue },
		"Tenants": func(p operator.LetterPart) string { return tenantName(p.Tenant) },
		"Errors":  func(p operator.LetterPart) string { return cmp.Or(p.ErrorCode, "without a code") },
	}
	for _, name := range []string{"Kinds", "Queues", "Tenants", "Errors"} {
		if name == "Tenants" && !v.who.AllTenants {
			continue
		}
		counts := map[string]int64{}
		for _, p := range parts {
			counts[of[name](p)] += p.Jobs
		}
		values := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
		})
		var words []string
		for _, value := range values[:min(len(values), sampleSize)] {
			words = append(words, value+" "+number(counts[value]))
		}
		if more := len(values) - sampleSize; more > 0 {
			words = append(words, number(int64(more))+" more")
		}
		split = append(split, field{name, strings.Join(words, ", ")})
	}
	return split
}

// lettersCommand returns the command line that does the same.
func lettersCommand(act string, f operator.DeadLetterFilter, until string) string {
	line := "posthaste dlq " + act
	for _, one := range [][2]string{
		{"--fingerprint", f.Fingerprint},
		{"--kind", f.Kind},
		{"--queue", f.Queue},
		{"--status", string(f.Status)},
		{"--error-code", f.ErrorCode},
		{"--key", f.Key},
		{"--failed-since", instantOrEmpty(f.FailedSince)},
		{"--failed-until", until},
	} {
		if one[1] != "" {
			line += " " + one[0] + " " + shellQuoted(one[1])
		}
	}
	if !f.Tenant.IsZero() {
		line += " --tenant " + f.Tenant.String()
	}
	return line
}

func instantOrEmpty(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

func doLetters(act operator.OperationAct) func(*visit, *operator.Operator) error {
	return func(v *visit, o *operator.Operator) error {
		filter, err := v.letterFilter()
		if err != nil {
			return err
		}
		filter.FailedUntil, err = time.Parse(time.RFC3339Nano, v.param("failed_until"))
		if err != nil || filter.FailedUntil.IsZero() { // which would mean any
			return unreadable("failed_until", "is no instant")
		}
		start := operator.OperationSpec{Act: act, Filter: filter}
		if start.ID, err = v.once(); err != nil {
			return err
		}
		if start.PerSecond, err = v.perSecond(); err != nil {
			return err
		}
		return v.start(o, start)
	}
}

// perSecond returns the rate that was entered; 0 means all at once.
func (v *visit) perSecond() (rate float64, err error) {
	text := strings.TrimSpace(v.param("rate"))
	if text == "" {
		return 0, nil
	}
	if rate, err = strconv.ParseFloat(text, 64); err != nil || !(rate >= operator.MinPerSecond && rate <= operator.MaxPerSecond) {
		return 0, badInput(fmt.Sprintf("The rate %s is no number of jobs a second from %v to %v. Nothing was changed.",
			quoted(text), operator.MinPerSecond, operator.MaxPerSecond))
	}
	return rate, nil
}

// mayGoOn refuses to resume an operation that cancels jobs for people who may not cancel one.
func (v *visit) mayGoOn(o operator.Operation) error {
	if o.Act == operator.CancelJobs && !v.can(access.JobsCancel) {
		return refusal{
			http.StatusForbidden, "You may not cancel jobs",
			"The operation cancels jobs, which takes the capability " + string(access.JobsCancel) +
				". Nothing was changed.",
		}
	}
	return nil
}

// operationAct returns the first step of stopping or resuming an operation.
func operationAct(verb string) func(*visit) (confirmation, error) {
	will := map[string][]string{
		"stop": {
			"What it has done stays done; the jobs that are left stay as they are.",
			"It can be undone: resume it.",
		},
		"resume": {"It goes on where it was, with the jobs that it was started for."},
	}
	return func(v *visit) (c confirmation, err error) {
		id, err := outbox.ParseID(v.param("id"))
		if err != nil {
			return c, unreadable("id", "is no operation’s id")
		}
		found, err := v.operator.Operation(v.ctx(), v.tenant(), id)
		if err == nil && verb == "resume" {
			err = v.mayGoOn(found)
		}
		if err != nil {
			return c, err
		}
		return confirmation{
			title: upperFirst(verb) + " the operation", will: will[verb],
			back: link("operation", "id", found.ID.String()), crumb: "Operation",
			hidden:  []field{{"id", found.ID.String()}, operationStanding(found).shown()},
			command: "posthaste operations " + verb + " " + found.ID.String(),
		}, nil
	}
}

// progressOfOperation returns the state of an operation, for sign, and a word.
func progressOfOperation(o operator.Operation) (kind, word string) {
	switch {
	case !o.FinishedAt.IsZero():
		return "good", "done"
	case !o.StoppedAt.IsZero():
		return "paused", "stopped"
	case o.Failure != "":
		return "bad", "tries again"
	case o.Collecting:
		return "run", "collecting"
	}
	return "run", "going on"
}

// meant describes which jobs an operation is about: whose, and within which times.
func (v *visit) meant(o operator.Operation) string {
	f, jobs := o.Filter, o.Jobs
	tenant := ""
	if of := cmp.Or(o.Tenant, f.Tenant, jobs.Tenant); v.who.AllTenants && !of.IsZero() {
		tenant = tenantName(of)
	}
	var words []string
	for _, one := range [][2]string{
		{"kind", f.Kind + jobs.Kind},
		{"queue", f.Queue + jobs.Queue},
		{"status", string(f.Status) + search{statuses: jobs.Statuses}.get("status")},
		{"code", f.ErrorCode},
		{"error", f.Fingerprint},
		{"key", f.Key + jobs.Key},
		{"tenant", tenant},
		{"created since", instantOf(cmp.Or(f.CreatedSince, jobs.CreatedSince))},
		{"created before", instantOf(cmp.Or(f.CreatedUntil, jobs.CreatedUntil))},
		{"failed since", instantOf(f.FailedSince)},
	} {
		if one[1] != "" {
			words = append(words, one[0]+" "+one[1])
		}
	}
	if len(words) == 0 { // an act on open jobs names their statuses
		words = append(words, "all dead letters")
	}
	if !f.FailedUntil.IsZero() { // of every act on dead letters: it leaves out what dies later
		words = append(words, "failed before "+instant(f.FailedUntil))
	}
	return strings.Join(words, ", ")
}

// restOf describes how long an operation still takes at its rate; "" if it has none, or does not go on.
func restOf(o operator.Operation) string {
	left := o.Matched - o.Done - o.Passed
	if o.PerSecond <= 0 || left <= 0 || o.Overdue || !o.StoppedAt.IsZero() || !o.FinishedAt.IsZero() {
		return ""
	}
	return ", about " + took(time.Duration(float64(left)/o.PerSecond*float64(time.Second))) + " left"
}

// didOf describes how much an operation has done.
func didOf(o operator.Operation) string {
	if o.Collecting { // what it concerns, before it acts on the first of them
		return fmt.Sprintf("collecting: %s of %s so far", number(o.Collected), number(o.Matched))
	}
	verbs := map[operator.OperationAct]string{
		operator.ReplayLetters: "replayed", operator.DismissLetters: "dismissed",
		operator.CancelJobs: "cancelled", operator.ReleaseJobs: "released", operator.RetryJobs: "made due",
		operator.EditJobs: "edited",
	}
	text := fmt.Sprintf("%s %s of %s", number(o.Done), verbs[o.Act], number(o.Matched))
	if o.Passed > 0 {
		text += fmt.Sprintf(", %s left alone", number(o.Passed))
	}
	return text
}
