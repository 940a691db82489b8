package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// NewJobReplay selects jobs of the history to enqueue again.
type NewJobReplay struct {
	Kind          string    `json:"kind" minLength:"1" maxLength:"128"`
	Since         time.Time `json:"since" empty:"say from when on" doc:"Succeeded from then on"`
	Until         time.Time `json:"until,omitzero" empty:"leave it out to mean now" doc:"Succeeded before; now, if left out"`
	Key           string    `json:"key,omitempty" empty:"leave it out to mean any" maxLength:"512"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"No more than so many become due; all at once if left out"`
	Again         bool      `json:"again,omitempty" doc:"Messages of jobs that a sink carries out have new ids, and not those of the first time"`
	DryRun        bool      `json:"dryRun,omitempty" doc:"Only say what it would enqueue"`
	Reason        string    `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

// JobReplay describes jobs of the history that were enqueued again, or would be.
type JobReplay struct {
	Jobs         int64     `json:"jobs" doc:"That are meant: of a kind, succeeded, and no copies"`
	Bytes        int64     `json:"bytes" doc:"Of their payloads"`
	OldestAt     time.Time `json:"oldestAt,omitzero" doc:"When the first of them succeeded"`
	NewestAt     time.Time `json:"newestAt,omitzero" doc:"And the last"`
	Until        time.Time `json:"until"`
	TakesSeconds float64   `json:"takesSeconds,omitempty" doc:"Until the last is due, at the rate"`
	Replay       string    `json:"replay,omitempty" format:"uuid" doc:"The copies have it in the header posthaste-replay; left out after a dry run"`
}

type jobReplayInput struct {
	OfTenant
	Body NewJobReplay
}

type jobReplayOutput struct{ Body JobReplay }

// replayHistory replays a tenant's own jobs, or with a token of all tenants, those of all.
func (s *server) replayHistory(ctx context.Context, in *jobReplayInput) (*jobReplayOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	wanted := operator.HistoryReplay{
		Kind: in.Body.Kind, Since: in.Body.Since, Until: in.Body.Until, Key: in.Body.Key, Tenant: tenant, PerSecond: in.Body.RatePerSecond, Again: in.Body.Again,
	}
	out := &jobReplayOutput{}
	var plan operator.HistoryPlan
	if in.Body.DryRun {
		plan, err = s.operator.WouldReplayHistory(ctx, wanted)
	} else {
		id, done, failed := s.by(ctx).Because(in.Body.Reason).ReplayHistory(ctx, wanted)
		plan, err, out.Body.Replay = done, failed, id.String()
	}
	if err != nil {
		return nil, err
	}
	out.Body.Jobs, out.Body.Bytes = plan.Jobs, plan.Bytes
	out.Body.OldestAt, out.Body.NewestAt, out.Body.Until = utc(plan.Oldest), utc(plan.Newest), utc(plan.Until)
	out.Body.TakesSeconds = plan.Takes.Seconds()
	return out, nil
}
