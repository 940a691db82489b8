package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type jobExplainer interface {
	Explain(context.Context, outbox.ID) (operator.Explanation, error)
}

var (
	_ jobExplainer = (*operator.Operator)(nil)
	_ jobExplainer = (*remote)(nil)
)

func (p *program) whyCommand() *cli.Command {
	return &cli.Command{
		Name: "why", Usage: "show why a job does not run, and the remedy", ArgsUsage: "ID",
		Description: "The first reason is the decisive one; the others would apply without it.",
		Flags:       append(operatorFlags(), outputFlag()), Action: p.explainJob,
	}
}

func (p *program) explainJob(ctx context.Context, c *cli.Command) error {
	ids, err := jobIDs(c)
	if err != nil {
		return err
	}
	if len(ids) != 1 {
		return wantArgs(c, 1, 1)
	}
	return operate(ctx, p, c, func(ctx context.Context, o jobExplainer) error {
		e, err := o.Explain(ctx, ids[0])
		if err != nil {
			return err
		}
		if c.String("output") == "table" {
			return p.tellReasons(e)
		}
		l := listing{header: []string{"code", "sentence", "since", "until", "act", "evidence"}}
		for _, r := range e.Reasons {
			evidence, err := json.Marshal(evidenceOf(r))
			if err != nil {
				return err
			}
			l.add(r.Code, r.Sentence, instant(r.Since), instant(r.Until), textOrNull(r.Act.Command),
				json.RawMessage(evidence))
		}
		return p.print(c, l)
	})
}

// tellReasons prints reasons for people: a sentence per paragraph, with the remedy below.
func (p *program) tellReasons(e operator.Explanation) error {
	for i, r := range e.Reasons {
		if i == 1 {
			fmt.Fprintln(p.stdout, "\nWhen that is gone:")
		}
		fmt.Fprintln(p.stdout, oneLine(r.Sentence))
		if r.Act.Command != "" {
			fmt.Fprintf(p.stdout, "  $ %s\n", oneLine(r.Act.Command))
		}
	}
	return nil
}

// evidenceOf leaves out what does not apply.
func evidenceOf(r operator.Reason) map[string]any {
	object := map[string]any{}
	put := func(name string, known bool, v any) {
		if known {
			object[name] = v
		}
	}
	put("job", !r.Job.IsZero(), r.Job)
	put("job_status", r.JobStatus != "", r.JobStatus)
	put("key", r.Key != "", r.Key)
	put("worker", r.Worker != "", r.Worker)
	put("by", r.By != "", r.By)
	put("because", r.Because != "", r.Because)
	put("running", r.Running != 0, r.Running)
	put("limit", r.Limit != 0, r.Limit)
	put("rate", r.Rate.Starts != 0, fmt.Sprintf("%d/%s", r.Rate.Starts, r.Rate.Interval))
	put("ahead", r.Ahead != 0, r.Ahead)
	put("per_second", r.PerSecond != 0, r.PerSecond)
	put("attempt", r.Attempt != 0, r.Attempt)
	put("error_code", r.ErrorCode != "", r.ErrorCode)
	put("error_message", r.ErrorMessage != "", r.ErrorMessage)
	var workers []map[string]any
	for _, w := range r.Workers {
		workers = append(workers, map[string]any{
			"name": w.Name, "version": w.Version, "seen_at": instant(w.SeenAt),
			"present": !w.Missing,
		})
	}
	put("workers", len(workers) > 0, workers)
	return object
}

// Explain returns the API's answer in the types of package operator.
func (r *remote) Explain(ctx context.Context, id outbox.ID) (operator.Explanation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	why, err := r.api.Why(ctx, id.String())
	if err != nil {
		return operator.Explanation{}, fmt.Errorf("explain job %s: %w", id, err)
	}
	e := operator.Explanation{ID: id, Status: outbox.Status(why.Status), AsOf: why.AsOf}
	for _, from := range why.Reasons {
		to := operator.Reason{
			Code: operator.ReasonCode(from.Code), Sentence: from.Sentence, Since: from.Since, Until: from.Until,
			Evidence: operator.Evidence{
				Job: idOf(from.Job), JobStatus: outbox.Status(from.JobStatus), Key: from.Key, Worker: from.Worker,
				By: from.By, Because: from.Because,
				Running: from.Running, Limit: from.Limit, Ahead: from.Ahead, PerSecond: from.PerSecond,
				Attempt: from.Attempt, ErrorCode: from.ErrorCode, ErrorMessage: from.ErrorMessage,
			},
		}
		for _, w := range from.Workers {
			to.Workers = append(to.Workers, operator.Dispatcher{
				Name: w.Name, Version: w.Version, SeenAt: w.SeenAt,
				Missing: !w.Present,
			})
		}
		if from.Rate != nil {
			to.Rate = operator.Rate{
				Starts:   from.Rate.Starts,
				Interval: time.Duration(from.Rate.IntervalSeconds * float64(time.Second)),
			}
		}
		to.Act = actOf(from.Act)
		e.Reasons = append(e.Reasons, to)
	}
	return e, nil
}
