package operator_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An operation on more jobs than a request has time to store begins at once. Its steps store its jobs before they act:
// those that were counted, without those that have come since, or to which something has happened before or after the
// start.
func TestAnOperationOnManyJobsStoresThemInSteps(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.NewID(), {}} {
		_, db := newRig(t)
		runner := operator.New(pgtest.Login(t, db, "outbox_api"))
		mine, other, meant := tenant, outbox.NewID(), int64(25_000)
		if mine.IsZero() {
			mine, meant = outbox.RootTenant, 25_010
		}
		open(t, db, mine, "mail", "pending", 12_000)
		open(t, db, mine, "bill", "pending", 40_000)
		open(t, db, other, "mail", "pending", 10)
		open(t, db, mine, "mail", "pending", 13_000) // in the second step
		tied := operator.WithTenant(t.Context(), tenant)
		filter := operator.OpenFilter{Tenant: tenant, Kind: "mail"}
		counted, err := runner.MatchOpenJobs(tied, operator.CancelJobs, filter)
		if err != nil || counted.Matched != meant {
			t.Fatalf("counted %+v, %v; want %d", counted, err, meant)
		}
		changes := func(order string) {
			exec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 1 WHERE id = (SELECT id FROM outbox.jobs WHERE tenant_id = $1 AND kind = 'mail' AND epoch = 0 ORDER BY id `+order+` LIMIT 1)`, mine)
		}
		changes("")
		changes("DESC")
		filter.AsOf = counted.AsOf
		op, err := runner.StartOperation(tied, operator.OperationSpec{Act: operator.CancelJobs, Jobs: filter})
		if err != nil || op.Matched != meant-2 || op.Act != operator.CancelJobs || !op.Collecting || op.Collected != 0 {
			t.Fatalf("started %+v, %v; want %d", op, err, meant-2)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != 0 {
			t.Errorf("the start has stored %d jobs", n)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE act = 'operation.start' AND after->>'act' = 'cancel' AND after->'filter'->'as_of' IS NULL`); n != 1 {
			t.Errorf("the audit has %d starts as they were asked for", n)
		}
		open(t, db, mine, "mail", "pending", 7)
		changes("OFFSET 5")
		step := func() {
			if _, err := runner.StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		step()
		changes("OFFSET 6") // it is stored, in the epoch in which it was counted
		if op, err = runner.Operation(tied, tenant, op.ID); err != nil || op.Done != 0 || op.Jobs.AsOf != "" || op.Act != operator.CancelJobs {
			t.Errorf("after the first step it is %+v, %v", op, err)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); !op.Collecting || n == 0 || op.Collected != n {
			t.Errorf("after the first step it is %+v; want it collecting, with the %d jobs that are stored", op, n)
		}
		step()
		if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs AS meant JOIN outbox.jobs ON jobs.id = job_id AND jobs.epoch = meant.epoch AND jobs.epoch = 0 AND kind = 'mail'`); n != meant-4 {
			t.Errorf("%d jobs are as they were counted, want %d", n, meant-4)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != meant-3 {
			t.Errorf("%d jobs are stored, want %d", n, meant-3)
		}
		if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE act = 'job.cancel'`); n != 0 {
			t.Errorf("%d jobs were cancelled before all were stored", n)
		}
		step()
		if op, err = runner.Operation(tied, tenant, op.ID); err != nil || op.Done < 97 || op.Failure != "" || op.Collecting || op.Collected != 0 {
			t.Errorf("after the third step it is %+v, %v", op, err)
		}
	}
}

// The jobs that exist now are those that exist when the operation starts.
func TestAnOperationOnManyJobsIsOnThoseThatExist(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	open(t, db, outbox.RootTenant, "mail", "pending", 20_001)
	op, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.RetryJobs})
	if err != nil || op.Matched != 20_001 {
		t.Fatalf("started %+v, %v; want 20 001", op, err)
	}
	open(t, db, outbox.RootTenant, "mail", "pending", 9)
	if _, err := o.StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != 20_001 {
		t.Errorf("%d jobs are stored, want 20 001", n)
	}
	exec(t, db, `DELETE FROM outbox.operation_jobs WHERE ctid NOT IN (SELECT ctid FROM outbox.operation_jobs LIMIT 150)`)
	if op = run(t, o, o, op.ID, finished); op.Done != 150 || op.Passed != 19_851 {
		t.Errorf("it ended as %+v", op)
	}
}

// The database was restored from a dump on a server whose transactions are fewer, or the moment of the count is
// damaged: nothing is acted on that nobody has counted.
func TestAnOperationThatWasCountedElsewhereStoresNothing(t *testing.T) {
	t.Parallel()
	for name, asOf := range map[string]string{"elsewhere": "4000000000:4000000000:@1790000000000000", "damaged": "yesterday", "gone": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, db := newRig(t)
			open(t, db, outbox.RootTenant, "mail", "pending", 20_001)
			if _, err := o.StartOperation(t.Context(), operator.OperationSpec{Act: operator.RetryJobs}); err != nil {
				t.Fatal(err)
			}
			exec(t, db, `UPDATE outbox.operations SET filter = jsonb_set(filter, '{as_of}', to_jsonb($1::text))`, asOf)
			_, err := o.StepOperation(t.Context())
			if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != 0 {
				t.Errorf("%d jobs are stored; the step has ended with %v", n, err)
			}
		})
	}
}

// The same holds for the few jobs that the start stores itself: it is refused, and leaves no operation.
func TestAStartThatWasCountedElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	open(t, db, outbox.RootTenant, "mail", "pending", 3)
	n := operator.OperationSpec{Act: operator.CancelJobs, Jobs: operator.OpenFilter{AsOf: "4000000000:4000000000:@1790000000000000"}}
	op, err := o.StartOperation(t.Context(), n)
	if refused, ok := errors.AsType[*outbox.InvalidError](err); !ok || refused.Field != "OpenFilter.AsOf" || !strings.Contains(refused.Reason, "count again") {
		t.Errorf("started %+v, %v; want it refused for its AsOf", op, err)
	}
	if n := number(t, db, `SELECT (SELECT count(*) FROM outbox.operations) + (SELECT count(*) FROM outbox.operation_jobs)`); n != 0 {
		t.Errorf("%d operations and jobs are stored", n)
	}
}

// A tenant's operation reads the tenant's jobs, however many others have that are older, newer, or in between.
func TestAnOperationOfATenantReadsItsJobsOnly(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	runner := operator.New(pgtest.Login(t, db, "outbox_api"))
	mine, other := outbox.NewID(), outbox.NewID()
	open(t, db, other, "mail", "pending", 60_000)
	open(t, db, outbox.RootTenant, "mail", "pending", 10_000)
	open(t, db, mine, "mail", "pending", 11_000)
	open(t, db, other, "mail", "pending", 60_000)
	open(t, db, mine, "mail", "pending", 11_000)
	open(t, db, other, "mail", "pending", 60_000)
	exec(t, db, `ANALYZE outbox.jobs`)
	tied := operator.WithTenant(t.Context(), mine)
	op, err := runner.StartOperation(tied, operator.OperationSpec{Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: mine}})
	if err != nil || op.Matched != 22_000 {
		t.Fatalf("started %+v, %v; want 22 000", op, err)
	}
	var plans []string
	if _, err := runner.Planned(&plans).StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.operation_jobs`); n != 22_000 {
		t.Errorf("the first step has stored %d jobs, want all 22 000", n)
	}
	seen := 0
	for _, plan := range plans {
		scan := scanOfJobs(plan)
		if scan == "" {
			continue
		}
		seen++
		if read := buffersOf(t, scan); read > 25_000 { // a row's page, at most, for each row: 202 000 have others'
			t.Errorf("it read %d buffers of 22 000 jobs:\n%s", read, plan)
		}
		if !strings.Contains(scan, "jobs_tenant_idx") {
			t.Errorf("it read what is not the tenant's:\n%s", plan)
		}
	}
	if seen != 2 {
		t.Errorf("%d statements have read jobs, want where the step ends, and its jobs:\n%s", seen, strings.Join(plans, "\n\n"))
	}
}

// scanOfJobs returns the lines of a plan from its scan of outbox.jobs on; "" if it has none.
func scanOfJobs(plan string) string {
	at := regexp.MustCompile(`Scan.* on jobs `).FindStringIndex(plan)
	if at == nil {
		return ""
	}
	return plan[at[0]:]
}

// buffersOf returns how many buffers the first node of the plan has read.
func buffersOf(t *testing.T, plan string) (buffers int) {
	t.Helper()
	line := regexp.MustCompile(`Buffers: shared.*`).FindString(plan)
	for _, n := range regexp.MustCompile(`(?:hit|read)=(\d+)`).FindAllStringSubmatch(line, -1) {
		read, _ := strconv.Atoi(n[1])
		buffers += read
	}
	if buffers == 0 {
		t.Fatalf("the plan names no buffers:\n%s", plan)
	}
	return buffers
}
