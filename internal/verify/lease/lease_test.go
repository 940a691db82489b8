package lease_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/lease"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func check(t *testing.T, config lease.Config) lease.Report {
	t.Helper()
	url := pgtest.URL(t)
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }
	started := time.Now()
	report, err := lease.Check(t.Context(), connect, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d histories linearizable, %d undecided; %d operations in %s, %d clients killed, %d writes with lost leases",
		report.Linearizable, report.Histories, report.Undecided, report.Operations, time.Since(started).Round(time.Millisecond), report.Killed, report.Refused)
	return report
}

// Whatever workers, zombies, reapers and operators do to a job at the same time, killed or not, there is one order of
// all operations that its lease can have gone through.
func TestTheLeaseIsLinearizable(t *testing.T) {
	t.Parallel()
	const histories = 30
	report := check(t, lease.Config{Histories: histories})
	if report.Linearizable != histories || report.Operations != histories*400 {
		t.Errorf("linearizable histories = %d of %d operations, want %d of %d", report.Linearizable, report.Operations, histories, histories*400)
	}
	for _, illegal := range report.Illegal[:min(1, len(report.Illegal))] {
		t.Error(illegal)
	}
	if report.Killed < histories/2 || report.Refused < 5*histories {
		t.Errorf("clients killed = %d, writes refused = %d: too few for the check to mean anything", report.Killed, report.Refused)
	}
}

// planted is set by make mutants.
var planted = flag.Bool("planted", false, "also check statements with an error in them: each has to be found")

// The check finds errors in statements.
func TestPlantedErrorsAreFound(t *testing.T) {
	if !*planted {
		t.Skip("this proves the check, not the statements: make mutants runs it")
	}
	t.Parallel()
	const (
		fence = "jobs.epoch = input.epoch"
		none  = "(jobs.epoch = input.epoch OR jobs.status = 'running')"
	)
	for name, bug := range map[string]plant{
		"a success without the epoch":     {"SettleSucceeded", fence, none},
		"a failure without the epoch":     {"SettleUnfinished", fence, none},
		"an extension without the epoch":  {"ExtendLeases", fence, none},
		"a snooze that keeps the attempt": {"SettleUnfinished", "jobs.attempt - 1", "jobs.attempt"},
		"a retry that keeps the epoch":    {"RetryJob", "jobs.epoch + 1", "jobs.epoch"},
		"a reaper that counts no deaths":  {"ExpireLeases", "'dead'", "'retrying'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(100) { // an error is found in a race, so not in every history
				report := check(t, lease.Config{Histories: 1, Seed: seed, Statements: bug.statements})
				if len(report.Illegal) > 0 {
					return
				}
			}
			t.Error("100 histories are all linearizable: the error was not found")
		})
	}
}

// plant is an error in one statement.
type plant struct{ statement, from, to string }

func (p plant) statements(conn *pgx.Conn) lease.Statements { return sqlgen.New(changed{conn, p}) }

type changed struct {
	*pgx.Conn
	plant
}

func (p changed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.HasPrefix(sql, "-- name: "+p.statement+" ") {
		if !strings.Contains(sql, p.from) {
			return nil, fmt.Errorf("%s does not say %q: there is nothing to plant the error into", p.statement, p.from)
		}
		sql = strings.ReplaceAll(sql, p.from, p.to)
	}
	return p.Conn.Query(ctx, sql, args...)
}
