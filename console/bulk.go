package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// bulkActs returns the acts on all open jobs of a search, if its conditions allow any: an operation knows some of them
// only.
func bulkActs(v *visit, f search) (paths []string) {
	if f.hasOther(strings.Fields(onJobs)) || !v.can(access.AdminRead) {
		return nil
	}
	may := func(statuses ...outbox.Status) bool {
		for _, s := range statuses {
			if len(f.statuses) == 0 || f.has(s) {
				return true
			}
		}
		return false
	}
	if may(outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying) {
		paths = append(paths, "jobs-cancel")
	}
	if may(outbox.Pending, outbox.Retrying) {
		paths = append(paths, "jobs-retry")
	}
	if may(outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying) {
		paths = append(paths, "jobs-edit")
	}
	if may(outbox.Created) {
		paths = append(paths, "jobs-release")
	}
	return paths
}

// pairs returns the conditions as parameters, alternating names and values.
func (f search) pairs() (pairs []string) {
	for _, name := range names {
		if value := f.get(name); value != "" {
			pairs = append(pairs, name, value)
		}
	}
	return pairs
}

// openFilter returns the search given by the parameters, as the filter of an operation, restricted to the viewer's
// tenant.
func (v *visit) openFilter() (f search, of operator.OpenFilter, err error) {
	if f, err = v.searchOf(); err != nil {
		return f, of, err
	}
	filter, err := v.filter(f)
	return f, operator.OpenFilter{
		Kind: filter.Kind, Queue: filter.Queue, Key: filter.Key, Tenant: filter.Tenant, Statuses: filter.Statuses,
		CreatedSince: filter.CreatedSince, CreatedUntil: filter.CreatedUntil,
	}, err
}

// askJobs returns the first step of an act on all open jobs of a search: it counts them, and the form applies to those.
func askJobs(act operator.OperationAct) func(*visit) (confirmation, error) {
	return func(v *visit) (c confirmation, err error) {
		f, filter, err := v.openFilter()
		if err != nil {
			return c, err
		}
		if len(f.statuses) > 0 && len(possible(act, f.statuses)) == 0 {
			return c, refusal{
				http.StatusConflict, "Nothing to " + string(act),
				"That is possible for jobs that are " + eitherOf(act.Possible()) + ", and the search is for those that are " +
					eitherOf(f.statuses) + ".",
			}
		}
		c = confirmation{back: link("operations"), crumb: "Jobs", reason: true, many: true}
		if v.r.Method == http.MethodPost {
			return c, nil
		}
		c.back, c.rate, c.danger = f.link(), act == operator.RetryJobs ||
			act == operator.EditJobs, act == operator.CancelJobs
		f.since.text, f.until.text = f.since.absolute(), f.until.absolute()
		pairs := f.pairs()
		for i := 0; i < len(pairs); i += 2 {
			c.hidden = append(c.hidden, field{pairs[i], pairs[i+1]})
		}
		var edit operator.JobEdit
		if act == operator.EditJobs {
			if edit, err = v.jobEdit(filter); err != nil || edit == (operator.JobEdit{}) {
				c.title, c.unset = "Edit all jobs that match", true
				if err != nil {
					c.fault = upperFirst(err.Error()) + "."
				}
				return c, nil
			}
			c.hidden = append(c.hidden, setFields(edit)...)
		}
		counted, err := v.operator.MatchOpenJobs(v.ctx(), act, filter)
		if err != nil {
			return c, err
		}
		if c.sample, err = v.sampleOf(act, filter); err != nil {
			return c, err
		}
		c.matched = counted.Matched
		c.hidden = append(c.hidden, field{"as_of", counted.AsOf},
			field{"matched", strconv.FormatInt(counted.Matched, 10)})
		c.command = jobsCommand(act, f, edit, filter.Tenant, counted.AsOf)
		c.title, c.will = v.willOfJobs(act, edit, counted)
		c.will = append(c.will,
			"A job that comes later, or to which something happens before you confirm, is left alone; so is one that is in none of these statuses when its turn comes.",
			"It goes on without this page, shows how far it is, and can be stopped.")
		return c, nil
	}
}

const (
	sampleSize = 5    // jobs that a preview shows
	typeCount  = 1000 // beyond this number, the person must type the number of jobs
)

func sampleTitle(c confirmation) string {
	if int64(len(c.sample)) >= c.matched {
		return "These jobs"
	}
	return "The newest of them"
}

// sampleOf returns the newest jobs that an act is about.
func (v *visit) sampleOf(act operator.OperationAct, of operator.OpenFilter) ([]operator.Job, error) {
	f := operator.Filter{
		Kind: of.Kind, Queue: of.Queue, Key: of.Key, Tenant: of.Tenant, Statuses: act.Possible(),
		CreatedSince: of.CreatedSince, CreatedUntil: of.CreatedUntil, Limit: sampleSize,
	}
	if len(of.Statuses) > 0 {
		f.Statuses = possible(act, of.Statuses)
	}
	page, err := v.operator.Page(v.ctx(), f)
	return page.Jobs, err
}

// typedCount refuses an act on many jobs if their number was not typed as the page asked.
func (v *visit) typedCount() error {
	matched, err := strconv.ParseInt(v.param("matched"), 10, 64)
	if err != nil {
		return unreadable("matched", "is missing, or no number")
	}
	typed := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, v.param("typed"))
	if matched > typeCount && typed != strconv.FormatInt(matched, 10) {
		return badInput("The number does not match: type how many jobs it is, " + number(matched) +
			". Nothing was changed.")
	}
	return nil
}

// jobEdit returns the edit given by the parameters. The error is a sentence for the person who wrote it.
func (v *visit) jobEdit(of operator.OpenFilter) (e operator.JobEdit, err error) {
	e.Queue = strings.TrimSpace(v.param("set_queue"))
	if text := strings.TrimSpace(v.param("set_priority")); text != "" {
		n, err := strconv.ParseInt(text, 10, 16)
		if err != nil {
			return e, fmt.Errorf("%s is no priority: want -32768 to 32767", quoted(text))
		}
		e.Priority = new(int(n))
	}
	if text := strings.TrimSpace(v.param("set_run_at")); text != "" {
		if e.RunAt, err = parseFuture(text, v.now.In(v.zone)); err != nil {
			return e, err
		}
	}
	if e == (operator.JobEdit{}) {
		return e, nil
	}
	err = operator.OperationSpec{Act: operator.EditJobs, Jobs: of, Edit: e}.Validate()
	if bad, ok := errors.AsType[*outbox.InvalidError](err); ok && bad.Field == "JobEdit.Queue" {
		err = fmt.Errorf("the queue %s", bad.Reason)
	}
	return e, err
}

// editWords describes an edit for prose.
func editWords(e operator.JobEdit, due string) string {
	var parts []string
	if e.Queue != "" {
		parts = append(parts, "queue "+e.Queue)
	}
	if e.Priority != nil {
		parts = append(parts, "priority "+strconv.Itoa(*e.Priority))
	}
	if due != "" {
		parts = append(parts, "the time "+due)
	}
	return strings.Join(parts, ", ")
}

// setFields returns an edit as parameters.
func setFields(e operator.JobEdit) (fields []field) {
	if e.Queue != "" {
		fields = append(fields, field{"set_queue", e.Queue})
	}
	if e.Priority != nil {
		fields = append(fields, field{"set_priority", strconv.Itoa(*e.Priority)})
	}
	if !e.RunAt.IsZero() {
		fields = append(fields, field{"set_run_at", e.RunAt.UTC().Format(time.RFC3339Nano)})
	}
	return fields
}

// jobsCommand returns the command line that does the same to the same jobs.
func jobsCommand(act operator.OperationAct, f search, edit operator.JobEdit, tenant outbox.ID, asOf string) string {
	line, conditions := "posthaste operations start "+string(act), ""
	for _, one := range [][2]string{
		{"--kind", f.kind},
		{"--queue", f.queue},
		{"--status", search{statuses: possible(act, f.statuses)}.get("status")},
		{"--key", f.key},
		{"--created-since", f.since.absolute()},
		{"--created-until", f.until.absolute()},
	} {
		if one[1] != "" {
			conditions += " " + one[0] + " " + shellQuoted(one[1])
		}
	}
	if !tenant.IsZero() {
		conditions += " --tenant " + tenant.String()
	}
	conditions = cmp.Or(conditions, " --all")
	for _, set := range setFields(edit) {
		// Use = because a priority may begin with -.
		conditions += " --" + strings.ReplaceAll(set.name, "_", "-") + "=" + shellQuoted(set.value)
	}
	return line + conditions + " --as-of " + shellQuoted(asOf)
}

// possible returns those of the statuses in which the act is possible; the command accepts no others.
func possible(act operator.OperationAct, statuses []outbox.Status) (some []outbox.Status) {
	for _, s := range statuses {
		if slices.Contains(act.Possible(), s) {
			some = append(some, s)
		}
	}
	return some
}

// eitherOf returns statuses for prose: created, pending or blocked.
func eitherOf(statuses []outbox.Status) string {
	words := make([]string, len(statuses))
	for i, s := range statuses {
		words[i] = string(s)
	}
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// willOfJobs describes what an act does to the counted jobs.
func (v *visit) willOfJobs(act operator.OperationAct, edit operator.JobEdit,
	counted operator.OpenMatch,
) (title string, will []string) {
	jobs := plural(int(counted.Matched), "job")
	var split []string
	for _, group := range groups {
		for _, s := range group {
			if n := counted.ByStatus[s]; n > 0 {
				split = append(split, number(n)+" "+string(s))
			}
		}
	}
	if len(split) > 0 {
		will = []string{strings.Join(split, ", ") + "."}
	}
	switch act {
	case operator.CancelJobs:
		will = append(will, "Those that wait are cancelled at once and never run.")
		if n := counted.ByStatus[outbox.Running]; n > 0 {
			will = append(will, fmt.Sprintf(
				"The handlers of the %s running are asked to stop; one that succeeds all the same has succeeded.",
				number(n)))
		}
		return "Cancel " + jobs, append(will, "It cannot be undone.")
	case operator.ReleaseJobs:
		return "Release " + jobs,
			append(will, "They are pending, and run when they are due and a worker is free. They cannot be held again.")
	case operator.EditJobs:
		due := ""
		if !edit.RunAt.IsZero() {
			due = instant(edit.RunAt)
		}
		will = append(will, "Each gets "+editWords(edit, due)+".", "The audit keeps what each of them had before.")
		switch {
		case counted.Keyed > 0 && edit.Queue != "":
			will = append(will, number(counted.Keyed)+
				" of them have a key, and are left alone: the limit and the order of a key hold within a queue.")
		case counted.Keyed > 0 && !edit.RunAt.IsZero():
			will = append(will, number(counted.Keyed)+
				" of them have a key. An ordered key keeps its order: where its next job is put off, those behind it wait for that one.")
		}
		if !edit.RunAt.IsZero() {
			will = append(will, "A job whose deadline comes before its new time would only expire, and is left alone.")
		}
		return "Edit " + jobs, will
	}
	return "Run " + jobs + " now",
		append(will, "They are due now and do not wait any longer. Their attempts stay as they are.",
			"A job whose deadline has passed is left alone.")
}

func doJobs(act operator.OperationAct) func(*visit, *operator.Operator) error {
	return func(v *visit, o *operator.Operator) error {
		_, filter, err := v.openFilter()
		if err != nil {
			return err
		}
		if filter.AsOf = v.param("as_of"); filter.AsOf == "" {
			return unreadable("as_of", "is missing")
		}
		start := operator.OperationSpec{Act: act, Jobs: filter}
		if start.ID, err = v.once(); err != nil {
			return err
		}
		if act == operator.EditJobs {
			if start.Edit, err = v.jobEdit(filter); err != nil {
				return unreadable("the edit", err.Error())
			}
		}
		if start.PerSecond, err = v.perSecond(); err != nil {
			return err
		}
		return v.start(o, start)
	}
}

// start starts an operation. If a form is sent again unchanged, it does nothing; with another rate it is refused,
// because that rate would not apply.
func (v *visit) start(o *operator.Operator, n operator.OperationSpec) error {
	started, err := o.StartOperation(v.ctx(), n)
	if err == nil && started.PerSecond != n.PerSecond {
		return refusal{
			http.StatusConflict, "This was started before",
			"It goes on as it was confirmed then: see the operations. Nothing was started now.",
		}
	}
	return err
}
