package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/lease"
	"github.com/posthaste-dev/posthaste/internal/verify/model"
)

// modelled returns the rows of family B that compare the SQL statements with a model in memory. They start no
// processes: the clients themselves make the faults.
func modelled() []Row {
	return []Row{
		{
			Name: "B6", Title: "The lease is linearizable",
			Fault: "clients are killed between a request and its response, six at a time on the same jobs", Tiers: both,
			run: linearizable, direct: true,
			Workload: "200 histories (S: 2,000) of 400 operations: claim, settle, extend, expire, retry, dismiss",
			Pass:     "every history is linearizable, none undecided",
			Test:     "TestTheLeaseIsLinearizable",
			Settings: map[string]string{"synchronous_commit": "off"}, // only clients are killed
		},
		{
			Name: "B8", Title: "The SQL statements agree with a model",
			Fault: "random operations, including those of workers that lost their lease", Tiers: both, run: sameAsModel,
			direct:   true,
			Workload: "100,000 operations (S: 5,000,000) of 19 kinds; after each, the whole database is compared with a model in memory",
			Pass:     "no differences",
			Test:     "TestModel",
			Settings: map[string]string{"synchronous_commit": "off"}, // nothing crashes here
		},
	}
}

func linearizable(ctx context.Context, r *Run) error {
	histories := r.Size(200, 2_000)
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, r.URL) }
	report, err := lease.Check(ctx, connect, lease.Config{Histories: histories, Seed: r.Seed})
	if err != nil {
		return err
	}
	var illegal []string
	for _, history := range report.Illegal {
		illegal = append(illegal, history.String())
	}
	r.Count("operations", report.Operations)
	r.Count("clients killed", report.Killed)
	r.Count("writes refused", report.Refused)
	r.None("histories that are not linearizable", illegal)
	r.Expect("linearizable histories", float64(report.Linearizable), "=", float64(histories))
	r.Expect("clients killed", float64(report.Killed), ">=", float64(histories/2))
	return nil
}

func sameAsModel(ctx context.Context, r *Run) error {
	n := r.Size(100_000, 5_000_000)
	done, err := model.Run(ctx, r.DB, r.Seed, n)
	r.Count("operations", done)
	var mismatches []string
	if err != nil {
		mismatches = append(mismatches, fmt.Sprint(err))
	}
	r.None("operations after which database and model differ", mismatches)
	r.Expect("operations", float64(done), "=", float64(n))
	return nil
}
