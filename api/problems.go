package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// Finding is something that is wrong now.
type Finding struct {
	Kind        string    `json:"kind" doc:"Kind of the finding; docs/operate/operations.md lists them" example:"no_handler"`
	Severity    string    `json:"severity" enum:"problem,warning" doc:"problem: jobs do not run, or will not"`
	Sentence    string    `json:"sentence"`
	Since       time.Time `json:"since,omitzero"`
	Tenant      string    `json:"tenant,omitempty" format:"uuid"`
	Queue       string    `json:"queue,omitempty"`
	JobKind     string    `json:"jobKind,omitempty"`
	Key         string    `json:"key,omitempty"`
	Fingerprint string    `json:"errorFingerprint,omitempty"`
	ErrorCode   string    `json:"errorCode,omitempty"`
	Message     string    `json:"message,omitempty" doc:"Error message"`
	Job         string    `json:"job,omitempty" format:"uuid" doc:"An example, or the dead letter that parked a key"`
	Schedule    string    `json:"schedule,omitempty"`
	Worker      string    `json:"worker,omitempty"`
	Jobs        int64     `json:"jobs,omitempty"`
	Do          string    `json:"do,omitempty" doc:"The remedy in words"`
	Act         *WhyAct   `json:"act,omitempty" doc:"The remedy as a command"`
}

type problemsOutput struct {
	Body struct {
		AsOf     time.Time `json:"asOf" doc:"When the check ran: at most 30 seconds ago"`
		Problems []Finding `json:"problems" nullable:"false" doc:"Ordered by severity, the worst first"`
	}
}

// listProblems lists what is wrong with the jobs that the principal may see and, for all tenants, with the
// installation.
func (s *server) listProblems(ctx context.Context, in *OfTenant) (*problemsOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.watch.Problems.Look(ctx, tenant)
	if err != nil {
		return nil, err
	}
	out := &problemsOutput{}
	out.Body.AsOf, out.Body.Problems = found.AsOf, make([]Finding, len(found.Problems))
	for i, p := range found.Problems {
		out.Body.Problems[i] = Finding{
			Kind: p.Kind, Severity: string(p.Severity), Sentence: p.Sentence, Since: utc(p.Since),
			Tenant: textOfID(p.Tenant), Queue: p.Queue, JobKind: p.JobKind,
			Key: p.Key, Fingerprint: p.Fingerprint, ErrorCode: p.ErrorCode, Message: p.Message, Job: textOfID(p.Job),
			Schedule: p.Schedule, Worker: p.Worker,
			Jobs: p.Jobs, Do: p.Do, Act: actOf(p.Act),
		}
	}
	return out, nil
}

// Overview summarizes how much work there is and how it goes.
type Overview struct {
	AsOf          time.Time       `json:"asOf"`
	Estimated     bool            `json:"estimated,omitempty" doc:"Waiting jobs were counted on a sample of the table, accurate to a few per cent"`
	OldestUnknown bool            `json:"oldestUnknown,omitempty" doc:"The oldest due jobs are unknown: the search was given up, because a session holds a snapshot, or the overview is one of a single tenant"`
	Queues        []OverviewQueue `json:"queues" nullable:"false"`
	Enqueued      int64           `json:"enqueued,omitempty" doc:"A counter, like closed: the difference between two overviews, divided by the time between them, is the rate. For all tenants only"`
	Closed        int64           `json:"closed,omitempty"`
	Recent        []Recent        `json:"recent" nullable:"false" doc:"Figures of the jobs that closed last, all kinds together first. For all tenants only"`
}

// OverviewQueue counts the jobs in a queue.
type OverviewQueue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	OldestDue   time.Time        `json:"oldestDue,omitzero" doc:"When the job that has waited longest was due. For all tenants only"`
	Jobs        map[string]int64 `json:"jobs" nullable:"false" doc:"Open jobs by status"`
}

// Recent describes the jobs of a kind that closed in the last minutes.
type Recent struct {
	Kind           string    `json:"kind,omitempty" doc:"Kind of the jobs; omitted: all kinds"`
	Jobs           int64     `json:"jobs"`
	Unsuccessful   int64     `json:"unsuccessful"`
	Since          time.Time `json:"since" doc:"When the first of these jobs closed"`
	WaitP50Seconds float64   `json:"waitP50Seconds"`
	WaitP99Seconds float64   `json:"waitP99Seconds"`
	RunP50Seconds  float64   `json:"runP50Seconds"`
	RunP99Seconds  float64   `json:"runP99Seconds"`
}

type overviewOutput struct{ Body Overview }

// getOverview returns the sampled overview of all tenants, or the counted one of a single tenant.
func (s *server) getOverview(ctx context.Context, in *OfTenant) (*overviewOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	if tenant.IsZero() {
		v, err := s.watch.Overviews.Look(ctx)
		if err != nil {
			return nil, err
		}
		return &overviewOutput{overviewOf(v)}, nil
	}
	counted, rules, err := s.queues(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &overviewOutput{Overview{
		AsOf: counted.AsOf, OldestUnknown: true, Queues: []OverviewQueue{},
		Recent: []Recent{},
	}}
	for _, q := range counted.Jobs.In(rules) {
		out.Body.Queues = append(out.Body.Queues, OverviewQueue{
			Queue: q.Name, PausedSince: utc(q.PausedSince),
			Jobs: byStatus(q.Jobs),
		})
	}
	return out, nil
}

func overviewOf(v operator.Overview) Overview {
	o := Overview{
		AsOf: utc(v.AsOf), Estimated: v.Estimated, OldestUnknown: v.NoOldest, Enqueued: v.Enqueued, Closed: v.Closed,
		Queues: make([]OverviewQueue, len(v.Queues)), Recent: make([]Recent, len(v.Recent)),
	}
	for i, q := range v.Queues {
		o.Queues[i] = OverviewQueue{
			Queue: q.Name, PausedSince: utc(q.PausedSince), OldestDue: utc(q.OldestDue),
			Jobs: byStatus(q.Jobs),
		}
	}
	for i, r := range v.Recent {
		o.Recent[i] = Recent{
			Kind: r.Kind, Jobs: r.Jobs, Unsuccessful: r.Unsuccessful, Since: utc(r.Since),
			WaitP50Seconds: r.WaitP50.Seconds(),
			WaitP99Seconds: r.WaitP99.Seconds(), RunP50Seconds: r.RunP50.Seconds(), RunP99Seconds: r.RunP99.Seconds(),
		}
	}
	return o
}

func byStatus(jobs map[outbox.Status]int64) map[string]int64 {
	texts := map[string]int64{}
	for status, n := range jobs {
		texts[string(status)] = n
	}
	return texts
}

// Me describes the caller.
type Me struct {
	Name         string   `json:"name" doc:"Name of the token, or subject of the JWT"`
	Tenant       string   `json:"tenant" format:"uuid" doc:"Tenant of the jobs that it enqueues"`
	AllTenants   bool     `json:"allTenants" doc:"Whether it reads and acts on the jobs of all tenants"`
	Capabilities []string `json:"capabilities" nullable:"false"`
}

type meOutput struct{ Body Me }

func (s *server) getMe(ctx context.Context, _ *struct{}) (*meOutput, error) {
	who := principal(ctx)
	out := &meOutput{Me{Name: who.Name, Tenant: who.Tenant.String(), AllTenants: who.AllTenants}}
	for _, c := range access.Capabilities() {
		if who.Can(c) {
			out.Body.Capabilities = append(out.Body.Capabilities, string(c))
		}
	}
	return out, nil
}

// examinedFor is how old an examination may be.
const examinedFor = time.Minute

// Answer is the answer of posthaste doctor to one of its questions.
type Answer struct {
	Question string `json:"question" example:"vacuum"`
	Severity string `json:"severity" enum:"ok,warning,problem"`
	What     string `json:"what"`
	Do       string `json:"do,omitempty"`
}

type doctorOutput struct {
	Body struct {
		AsOf    time.Time `json:"asOf" doc:"When the installation was checked: at most a minute ago"`
		Answers []Answer  `json:"answers" nullable:"false"`
	}
}

// getDoctor examines the installation as this process reaches it: wake-ups are tested over its own connections.
func (s *server) getDoctor(ctx context.Context, _ *struct{}) (*doctorOutput, error) {
	x, err := s.watch.Examinations.Look(ctx, examinedFor)
	if err != nil {
		return nil, err
	}
	out := &doctorOutput{}
	out.Body.AsOf, out.Body.Answers = x.AsOf, make([]Answer, len(x.Findings))
	for i, f := range x.Findings {
		out.Body.Answers[i] = Answer{f.Question, string(f.Severity), f.What, f.Do}
	}
	return out, nil
}

func newWatch(s *server) *watch.State {
	if s.config.Watch != nil {
		return s.config.Watch
	}
	return watch.New(s.config.Pool, watch.Config{
		CountAtOnce: s.config.CountAtOnce, Stopping: s.config.Stopping,
		Changes: watch.ChangesConfig{
			LookEvery: s.config.lookEvery, DeafAfter: s.config.deafAfter, Rest: s.config.restAfter,
			MaxChanges: s.config.maxChanges, MaxWaiting: s.config.maxWaiting,
			Complain: func(ctx context.Context, err error) { _ = s.explain(ctx, err) },
		},
	})
}
