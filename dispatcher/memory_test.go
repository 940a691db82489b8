package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// memoryStore is what a claim loop sees of a database: jobs by tenant, priority and time. Each key is one of many. The
// test sets how long a claim takes, and the answer of a survey.
type memoryStore struct {
	routes   map[string]*route
	capacity *capacity
	take     func(claimRequest) time.Duration // time that a claim takes; nil means none
	refuse   func(claimRequest) error         // error of a claim; nil means success
	answer   func() time.Duration             // time that the answer of a survey takes; nil means none

	recorder *report.Recorder // of the jobs' reports; nil if they make none

	mu       sync.Mutex
	jobs     []*outbox.Claimed // waiting jobs, the first ones first
	claims   []claimRequest    // requests so far
	surveys  int
	searched int
	reads    time.Duration // time that a search takes
	cut      error         // how a search ends after it has found something; nil means that it succeeds
	orphans  int           // looks for them
	paused   bool
	locked   map[outbox.ID]bool // by other transactions: claims pass by them
	away     error              // error of every statement
}

func (s *memoryStore) claim(_ context.Context, _ querier, r claimRequest) *claimBatch {
	s.mu.Lock()
	take := s.take
	s.mu.Unlock()
	if take != nil {
		time.Sleep(take(r))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims = append(s.claims, r)
	b, now := &claimBatch{err: s.away}, time.Now()
	if s.away == nil && s.refuse != nil {
		b.err = s.refuse(r)
	}
	if b.err != nil || s.paused {
		return b
	}
	offered := idSet(r.offered)
	for _, share := range r.shares {
		left := share.Quota
		cursors := share.Cursors
		if len(offered) > 0 {
			cursors = append([]*scheduler.Cursor{nil}, cursors...) // offered ones first
		}
		for _, c := range cursors {
			s.takeWhile(func() bool { return left > 0 && len(b.claimed) < r.room }, func(job *outbox.Claimed) bool {
				if job.RunAt.After(now) || (job.Key != "") != r.keyed || s.locked[job.ID] || !slices.Contains(r.kinds, job.Kind) {
					return false
				}
				var is bool
				if c == nil {
					is = job.Tenant == share.Tenant.ID && offered[job.ID]
				} else if flowOf(job) == c.Flow {
					at, from := positionOf(job), c.From(r.front, r.frontAt)
					is = !at.Before(from) || slices.Contains(c.Found(from), at)
				}
				if is {
					left--
					job.StartedAt, job.Attempt = now, job.Attempt+1
					a := &attempt{job: job, lease: lease.Lease{Job: job, Claimed: now}, capacity: s.capacity, route: s.routes[job.Kind]}
					if s.recorder != nil {
						a.reports.Begin(a, job, s.recorder)
					}
					b.claimed = append(b.claimed, a)
				}
				return is
			})
		}
	}
	slices.SortFunc(b.claimed, byUrgency)
	if r.keyed {
		b.tally.Looked = int32(len(b.claimed))
	}
	return b
}

// takeWhile removes the jobs for which take returns true, and looks no further once more returns false.
func (s *memoryStore) takeWhile(more func() bool, take func(*outbox.Claimed) bool) {
	kept := s.jobs[:0]
	for i, job := range s.jobs {
		if !more() {
			kept = append(kept, s.jobs[i:]...)
			break
		}
		if !take(job) {
			kept = append(kept, job)
		}
	}
	clear(s.jobs[len(kept):])
	s.jobs = kept
}

// SurveyQueue returns for each known flow when its first job is due that was not due before the last survey and, if it
// searches, each unknown flow.
func (s *memoryStore) SurveyQueue(_ context.Context, p sqlgen.SurveyQueueParams) ([]sqlgen.SurveyQueueRow, error) {
	rows, answer, err := s.survey(p)
	if answer != nil {
		time.Sleep(answer())
	}
	return rows, err
}

func (s *memoryStore) survey(p sqlgen.SurveyQueueParams) (rows []sqlgen.SurveyQueueRow, answer func() time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.surveys++
	at := pgtype.Timestamptz{Time: time.Now(), Valid: true}
	rows = []sqlgen.SurveyQueueRow{{DueInSeconds: math.Inf(1), SurveyedAt: at}}
	for i, tenant := range p.AskedTenantIds {
		f := scheduler.Flow{Tenant: tenant.Bytes, Priority: p.AskedPriorities[i]}
		if slices.ContainsFunc(s.jobs, func(job *outbox.Claimed) bool {
			return job.Key == "" && flowOf(job) == f && slices.Contains(p.Kinds, job.Kind) && !job.RunAt.After(p.Since.Time) &&
				(!p.AskedFrom[i].Time.After(job.RunAt) || p.AskedFrom[i].InfinityModifier != 0)
		}) {
			rows = append(rows, sqlgen.SurveyQueueRow{TenantID: tenant, Priority: f.Priority, DueInSeconds: math.Inf(-1), SurveyedAt: at})
		}
	}
	unknown, got := int32(0), map[scheduler.SurveyRow]bool{}
	for _, job := range s.jobs { // the first ones first
		f, tenants, priorities := scheduler.SurveyRow{Keyed: job.Key != "", Flow: flowOf(job)}, p.TenantIds, p.Priorities
		if f.Keyed {
			tenants, priorities = p.KeyedTenantIds, p.KeyedPriorities
		}
		known := false
		for i := range tenants {
			known = known || (scheduler.Flow{Tenant: tenants[i].Bytes, Priority: priorities[i]}) == f.Flow
		}
		if got[f] || !known && len(p.GapFrom) == 0 || known && p.Since.Valid && !job.RunAt.After(p.Since.Time) {
			continue
		}
		got[f] = true
		due := math.Inf(-1)
		if known { // it may be further away than a time.Duration reaches
			due = float64(job.RunAt.Unix()-at.Time.Unix()) + float64(job.RunAt.Nanosecond()-at.Time.Nanosecond())/1e9
		} else if unknown++; unknown > p.MaxNew {
			continue
		}
		rows = append(rows, sqlgen.SurveyQueueRow{Keyed: f.Keyed, TenantID: pgtype.UUID{Bytes: job.Tenant, Valid: true}, Priority: f.Priority, DueInSeconds: due, SurveyedAt: at})
	}
	return rows, s.answer, s.away
}

func (s *memoryStore) ReturnOrphans(context.Context, sqlgen.ReturnOrphansParams) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orphans++
	return 0, s.away
}

// FindUnreached takes as long as the test says, whatever a claim is refused.
func (s *memoryStore) FindUnreached(ctx context.Context, _ string, kinds []string, ranges []scheduler.Range) (found [][]scheduler.Position, read time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.searched++
	if wait := s.reads; wait > 0 {
		s.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
	}
	if err = cmp.Or(err, s.away); err != nil {
		return nil, 0, err
	}
	for _, r := range ranges {
		var places []scheduler.Position
		for _, job := range s.jobs {
			if at := positionOf(job); len(places) < scheduler.MaxFound && (job.Key != "") == r.Keyed && flowOf(job) == r.Flow &&
				at.Before(r.End) && !job.RunAt.After(time.Now()) && slices.Contains(kinds, job.Kind) {
				places = append(places, at)
			}
		}
		found = append(found, places)
	}
	return found, s.reads, s.cut
}

func (s *memoryStore) QueueIsPaused(context.Context, string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused, s.away
}

// add stores n jobs of the kind tiny that are due after in.
func (s *memoryStore) add(tenant outbox.ID, n int, in time.Duration) { s.addKeyed(tenant, n, in, "") }

func (s *memoryStore) addKeyed(tenant outbox.ID, n int, in time.Duration, key string) {
	s.addOf(tiny{}.Kind(), tenant, n, in, key)
}

func (s *memoryStore) addOf(kind string, tenant outbox.ID, n int, in time.Duration, key string) {
	jobs := make([]*outbox.Claimed, n)
	for i := range jobs {
		jobs[i] = newJob(kind, tenant, in, key)
	}
	s.put(jobs...)
}

// addAt stores a job of the kind tiny that is due now.
func (s *memoryStore) addAt(priority int, tenant outbox.ID, key string) {
	job := newJob(tiny{}.Kind(), tenant, 0, key)
	job.Priority = priority
	s.put(job)
}

func newJob(kind string, tenant outbox.ID, in time.Duration, key string) *outbox.Claimed {
	job := &outbox.Claimed{Tenant: tenant, MaxAttempts: 25, Payload: []byte("{}"), ContentType: engine.ContentJSON}
	job.ID, job.RunAt, job.Kind, job.Queue = outbox.NewID(), time.Now().Add(in), kind, engine.DefaultQueue
	job.Key = key
	return job
}

// put stores jobs in one transaction.
func (s *memoryStore) put(jobs ...*outbox.Claimed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, job := range jobs {
		at, _ := slices.BinarySearchFunc(s.jobs, positionOf(job), func(a *outbox.Claimed, p scheduler.Position) int {
			return cmp.Or(a.RunAt.Compare(p.RunAt), bytes.Compare(a.ID[:], p.ID[:]))
		})
		s.jobs = slices.Insert(s.jobs, at, job)
	}
}

// jobsFrom returns the jobs of a flow in a range. Only a test's refuse calls it, which has the lock.
func (s *memoryStore) jobsFrom(f scheduler.Flow, key string, from, to scheduler.Position) (jobs []*outbox.Claimed) {
	for _, job := range s.jobs {
		if flowOf(job) == f && job.Key == key && !positionOf(job).Before(from) && positionOf(job).Before(to) {
			jobs = append(jobs, job)
		}
	}
	return jobs
}
