package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// NewHistoryReplay selects jobs of the history to enqueue again.
type NewHistoryReplay struct {
	Kind          string    `json:"kind" minLength:"1" maxLength:"128"`
	Since         time.Time `json:"since" empty:"say from when on" doc:"Jobs that succeeded at or after this time"`
	Until         time.Time `json:"until,omitzero" empty:"leave it out to mean now" doc:"Jobs that succeeded before this time; now if omitted"`
	Key           string    `json:"key,omitempty" empty:"leave it out to mean any" maxLength:"512"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"At most this many become due per second; all at once if omitted"`
	Again         bool      `json:"again,omitempty" doc:"Give messages of jobs that a sink runs new ids instead of the original ones"`
	DryRun        bool      `json:"dryRun,omitempty" doc:"Only count what it would enqueue"`
	Reason        string    `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

// HistoryReplay describes jobs of the history that were enqueued again, or would be.
type HistoryReplay struct {
	Jobs         int64     `json:"jobs" doc:"Number of matching jobs: of the kind, succeeded, and not copies"`
	Bytes        int64     `json:"bytes" doc:"Bytes of their payloads"`
	OldestAt     time.Time `json:"oldestAt,omitzero" doc:"When the first of them succeeded"`
	NewestAt     time.Time `json:"newestAt,omitzero" doc:"When the last of them did"`
	Until        time.Time `json:"until"`
	TakesSeconds float64   `json:"takesSeconds,omitempty" doc:"Seconds until the last one is due, at the rate"`
	Replay       string    `json:"replay,omitempty" format:"uuid" doc:"Id of the replay, which the copies have in the header posthaste-replay; omitted after a dry run"`
}

type jobReplayInput struct {
	OfTenant
	Body NewHistoryReplay
}

type jobReplayOutput struct{ Body HistoryReplay }

// replayHistory replays a tenant's own jobs, or with a token of all tenants, those of all.
func (s *server) replayHistory(ctx context.Context, in *jobReplayInput) (*jobReplayOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	wanted := operator.JobReplay{
		Kind: in.Body.Kind, Since: in.Body.Since, Until: in.Body.Until, Key: in.Body.Key, Tenant: tenant,
		PerSecond: in.Body.RatePerSecond, Again: in.Body.Again,
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
