package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type auditor interface {
	Audit(context.Context, operator.AuditFilter) ([]operator.AuditEntry, error)
}

var _ auditor = (*operator.Operator)(nil)

func (p *program) auditCommand() *cli.Command {
	return &cli.Command{
		Name:  "audit",
		Usage: "list audit entries (who did what), newest first",
		Flags: append(operatorFlags(), outputFlag(),
			&cli.StringFlag{Name: "actor", Usage: "only by this `NAME`"},
			&cli.StringFlag{Name: "act", Usage: "only this `ACT`, like job.replay or queue.pause"},
			&cli.StringFlag{Name: "job", Usage: "only what was done to the job with this `ID`"},
			&cli.StringFlag{Name: "queue", Usage: "only what was done to this `QUEUE` or its jobs"},
			&cli.StringFlag{Name: "target", Usage: "only what was done to this `NAME`: a key, a schedule, a token"},
			&cli.StringFlag{Name: "request", Usage: "only as a part of the request with this `ID`"},
			onlyTenantFlag(),
			sinceFlag("since", "done"),
			untilFlag("until", "done"),
			limitFlag("acts"),
			beforeFlag("act"),
		),
		Commands: []*cli.Command{p.auditVerifyCommand()},
		Action:   p.listAudit,
	}
}

func (p *program) listAudit(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	f := operator.AuditFilter{
		Actor: c.String("actor"), Act: c.String("act"), Queue: c.String("queue"), Target: c.String("target"),
		RequestID: c.String("request"), WithPayloads: true,
	}
	limit, wrong := readLimit(c, 0)
	if text := c.String("before"); text != "" {
		var bad error
		if f.Before, bad = strconv.ParseInt(text, 10, 64); bad != nil || f.Before < 1 {
			wrong = errors.Join(wrong, fmt.Errorf("--before is %q: want an act's id", text))
		}
	}
	wrong = errors.Join(wrong, readID(c, "job", &f.JobID), readTenant(c, &f.Tenant))
	for flag, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		wrong = errors.Join(wrong, readMoment(c, flag, to))
	}
	if wrong != nil {
		return &usageError{wrong}
	}
	return operate(ctx, p, c, func(ctx context.Context, o auditor) error {
		l := listing{
			header: []string{
				"id", "at", "actor", "act", "job", "queue", "target", "reason", "before", "after",
				"request", "tenant",
			},
			onScreen: 8,
		}
		for len(l.rows) < limit {
			f.Limit = min(limit-len(l.rows), operator.MaxLimit)
			page, err := o.Audit(ctx, f)
			if err != nil {
				return err
			}
			for _, e := range page {
				l.add(e.ID, instant(e.At), e.Actor, e.Act, optional(e.JobID), e.Queue, e.Target, e.Reason,
					rawJSON(e.Before), rawJSON(e.After), e.RequestID, optional(e.Tenant))
				f.Before = e.ID
			}
			if len(page) < f.Limit {
				break
			}
		}
		return p.print(c, l)
	})
}

// optional returns nil for the zero id.
func optional(id outbox.ID) any {
	if id.IsZero() {
		return nil
	}
	return id
}
