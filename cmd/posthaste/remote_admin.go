package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (r *remote) Queues(ctx context.Context) ([]operator.Queue, error) {
	return r.QueuesOf(ctx, outbox.ID{})
}

func (r *remote) QueuesOf(ctx context.Context, tenant outbox.ID) ([]operator.Queue, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Queues(ctx, textOf(tenant))
	queues := make([]operator.Queue, len(found.Queues))
	for i, q := range found.Queues {
		queues[i] = operator.Queue{
			Name: q.Queue, PausedSince: q.PausedSince, MaxRunning: q.MaxRunning,
			Rate: operatorsRate(q.Rate), Jobs: jobsByStatus(q.Jobs),
		}
	}
	return queues, err
}

func jobsByStatus(texts map[string]int64) map[outbox.Status]int64 {
	jobs := map[outbox.Status]int64{}
	for status, n := range texts {
		jobs[outbox.Status(status)] = n
	}
	return jobs
}

// Overview returns the API's latest; a token of one tenant gets the counts of its jobs alone.
func (r *remote) Overview(ctx context.Context) (operator.Overview, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Overview(ctx, "")
	v := operator.Overview{
		AsOf: found.AsOf, Estimated: found.Estimated, NoOldest: found.OldestUnknown,
		Enqueued: found.Enqueued, Closed: found.Closed,
	}
	for _, q := range found.Queues {
		v.Queues = append(v.Queues, operator.Queue{
			Name: q.Queue, PausedSince: q.PausedSince, OldestDue: q.OldestDue, Jobs: jobsByStatus(q.Jobs),
		})
	}
	for _, k := range found.Recent {
		v.Recent = append(v.Recent, operator.Recent{
			Kind: k.Kind, Jobs: k.Jobs, Unsuccessful: k.Unsuccessful, Since: k.Since,
			WaitP50: seconds(k.WaitP50Seconds), WaitP99: seconds(k.WaitP99Seconds), RunP50: seconds(k.RunP50Seconds),
			RunP99: seconds(k.RunP99Seconds),
		})
	}
	return v, err
}

func (r *remote) Pause(ctx context.Context, queue string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.PauseQueue(ctx, queue)
	return err
}

func (r *remote) Resume(ctx context.Context, queue string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.ResumeQueue(ctx, queue)
	return err
}

func (r *remote) Limit(ctx context.Context, queue string, l operator.Limits) (int, operator.Rate, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	limits := client.QueueLimits{MaxRunning: l.MaxRunning}
	if l.Rate != nil {
		limits.Rate = &client.Rate{Starts: l.Rate.Starts, IntervalSeconds: l.Rate.Interval.Seconds()}
	}
	now, err := r.api.LimitQueue(ctx, queue, limits)
	return now.MaxRunning, operatorsRate(now.Rate), err
}

// operatorsRate returns zero for no limit.
func operatorsRate(r *client.Rate) operator.Rate {
	if r == nil {
		return operator.Rate{}
	}
	return operator.Rate{Starts: r.Starts, Interval: seconds(r.IntervalSeconds).Round(time.Microsecond)}
}

func (r *remote) Workers(ctx context.Context) ([]operator.Worker, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Workers(ctx)
	workers := make([]operator.Worker, len(found))
	for i, w := range found {
		workers[i] = operator.Worker{
			Name: w.Name, Version: w.Version, Queues: w.Queues, Kinds: w.Kinds, Listening: w.Listening, Running: w.Running,
			StartedAt: w.StartedAt, SeenAt: w.SeenAt, Missing: !w.Present,
		}
	}
	return workers, err
}

func letterFilterOf(f operator.DeadLetterFilter) client.DeadLetterFilter {
	filter := client.DeadLetterFilter{
		Tenant: textOf(f.Tenant), Kind: f.Kind, Queue: f.Queue, Key: f.Key, ErrorCode: f.ErrorCode,
		Fingerprint:  f.Fingerprint,
		CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil, FailedSince: f.FailedSince,
		FailedUntil: f.FailedUntil,
	}
	if f.Status != "" {
		filter.Status = []string{string(f.Status)}
	}
	return filter
}

func (r *remote) DeadLetters(ctx context.Context, f operator.DeadLetterFilter, older outbox.ID,
	limit int,
) ([]operator.DeadLetter, error) {
	filter := letterFilterOf(f)
	found, err := before(r.cursors, textOf(older), limit,
		func(limit int, cursor string) ([]client.DeadLetter, string, error) {
			ctx, cancel := patient(ctx)
			defer cancel()
			page, err := r.api.DeadLetterPage(ctx, filter, limit, cursor)
			return page.DeadLetters, page.Next, err
		}, func(l client.DeadLetter) string { return l.ID })
	letters := make([]operator.DeadLetter, len(found))
	for i, l := range found {
		letters[i] = operator.DeadLetter{Job: jobOf(l.Job), FailedAt: l.FailedAt, Fingerprint: l.Fingerprint}
	}
	return letters, err
}

func (r *remote) DeadLetterGroups(ctx context.Context, f operator.DeadLetterFilter,
	limit int,
) ([]operator.DeadLetterGroup, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.DeadLetterGroups(ctx, letterFilterOf(f), limit)
	groups := make([]operator.DeadLetterGroup, len(found))
	for i, g := range found {
		groups[i] = operator.DeadLetterGroup{
			Fingerprint: g.Fingerprint, Kind: g.Kind, ErrorCode: g.ErrorCode, Message: g.Message,
			Example: idOf(g.Example),
			Jobs:    g.Jobs, Oldest: g.Oldest, Newest: g.Newest,
		}
	}
	return groups, err
}

// Keys reads one page: the first, or the one behind a key that was the last of a page.
func (r *remote) Keys(ctx context.Context, f operator.KeyFilter) ([]operator.Key, error) {
	cursor := ""
	if f.After.Key != "" {
		if cursor = r.cursors[placeOf(f.After)]; cursor == "" {
			return nil, nil
		}
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	page, err := r.api.KeyPage(ctx, client.KeyFilter{Tenant: textOf(f.Tenant), Queue: f.Queue, Parked: f.Parked},
		f.Limit, cursor)
	keys := make([]operator.Key, len(page.Keys))
	for i, k := range page.Keys {
		keys[i] = keyOf(k)
	}
	if n := len(keys); n > 0 {
		r.cursors[placeOf(keys[n-1].Place())] = page.Next
	}
	return keys, err
}

func placeOf(p operator.KeyPlace) string { return fmt.Sprintf("%s %q %q", p.Tenant, p.Queue, p.Key) }

func keyOf(k client.Key) operator.Key {
	return operator.Key{
		KeyName: operator.KeyName{Tenant: idOf(k.Tenant), Queue: k.Queue, Key: k.Key},
		Waiting: k.Waiting, Blocked: k.Blocked, Running: k.Running, DeadLetters: k.DeadLetters,
		BlockedSince: k.BlockedSince, ParkedSince: k.ParkedSince, ParkedFor: idOf(k.ParkedFor), ParksAt: k.ParksAt,
	}
}

func (r *remote) Key(ctx context.Context, name operator.KeyName) (operator.Key, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	k, err := r.api.Key(ctx, client.KeyName{Tenant: textOf(name.Tenant), Queue: name.Queue, Key: name.Key})
	return keyOf(k), err
}

func (r *remote) Unblock(ctx context.Context, name operator.KeyName) (int, error) {
	return r.UnblockIf(ctx, name, "")
}

// Blocks returns "", which stands for any dead letters, if the server is too old to know.
func (r *remote) Blocks(ctx context.Context, name operator.KeyName) (string, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	k, err := r.api.Key(ctx, client.KeyName{Tenant: textOf(name.Tenant), Queue: name.Queue, Key: name.Key})
	return k.Blocks, err
}

func (r *remote) UnblockIf(ctx context.Context, name operator.KeyName, blocks string) (int, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	of := client.KeyName{Tenant: textOf(name.Tenant), Queue: name.Queue, Key: name.Key}
	done, err := r.api.UnblockIf(ctx, of, blocks)
	return done.Retried, err
}

func (r *remote) Schedules(ctx context.Context) ([]operator.Schedule, error) {
	return r.SchedulesOf(ctx, outbox.ID{})
}

func (r *remote) SchedulesOf(ctx context.Context, tenant outbox.ID) ([]operator.Schedule, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Schedules(ctx, textOf(tenant))
	schedules := make([]operator.Schedule, len(found))
	for i, s := range found {
		schedules[i] = operator.Schedule{
			Name: s.Name, Tenant: idOf(s.Tenant), Expression: s.Cron, Zone: s.TimeZone, Every: seconds(s.EverySeconds),
			Missed: s.Missed, MissedLimit: s.MissedLimit, Kind: s.Kind, Queue: s.Queue, Streamed: s.Streamed,
			NextAt: s.NextAt, LastAt: s.LastAt, PausedSince: s.PausedSince, CreatedAt: s.CreatedAt,
			UpdatedAt: s.UpdatedAt, SetBy: s.SetBy,
		}
	}
	return schedules, err
}

func (r *remote) PauseSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.PauseSchedule(ctx, client.ScheduleName{Tenant: textOf(tenant), Name: name})
	return err
}

func (r *remote) ResumeSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.ResumeSchedule(ctx, client.ScheduleName{Tenant: textOf(tenant), Name: name})
	return err
}

func (r *remote) DeleteSchedule(ctx context.Context, tenant outbox.ID, name string) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	_, err := r.api.DeleteSchedule(ctx, client.ScheduleName{Tenant: textOf(tenant), Name: name})
	return err
}

func (r *remote) RunSchedule(ctx context.Context, tenant outbox.ID, name string) (outbox.ID, outbox.Status, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	stored, err := r.api.RunSchedule(ctx, client.ScheduleName{Tenant: textOf(tenant), Name: name})
	return idOf(stored.ID), outbox.Status(stored.Status), err
}

func (r *remote) Audit(ctx context.Context, f operator.AuditFilter) ([]operator.AuditEntry, error) {
	filter := client.AuditFilter{
		Tenant: textOf(f.Tenant), Actor: f.Actor, Act: f.Act, JobID: textOf(f.JobID), Queue: f.Queue, Target: f.Target,
		RequestID: f.RequestID, Since: f.Since, Until: f.Until,
	}
	older := ""
	if f.Before > 0 {
		older = actID(f.Before)
	}
	found, err := before(r.cursors, older, f.Limit, func(limit int, cursor string) ([]client.Act, string, error) {
		ctx, cancel := patient(ctx)
		defer cancel()
		page, err := r.api.AuditPage(ctx, filter, limit, cursor)
		return page.Acts, page.Next, err
	}, func(a client.Act) string { return actID(a.ID) })
	entries := make([]operator.AuditEntry, 0, len(found))
	for a := range slices.Values(found) {
		entries = append(entries, operator.AuditEntry{
			ID: a.ID, At: a.At, Actor: a.Actor, Act: a.Act, Tenant: idOf(a.Tenant), JobID: idOf(a.JobID),
			Queue: a.Queue, Target: a.Target,
			Before: a.Before, After: a.After, Reason: a.Reason, RequestID: a.RequestID,
		})
	}
	return entries, err
}

// actID returns a text that sorts as the number does.
func actID(n int64) string { return fmt.Sprintf("%019d", n) }
