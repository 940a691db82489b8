package verify

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// Upgrade returns a row outside the scorecard, because it needs a second build: the previous release and this one work
// side by side on this one's schema.
func Upgrade() Row {
	return Row{
		Name: "U1", Title: "Two releases side by side",
		Fault: "kill -9 of a random worker every second, whose replacement may be of the other build, and every two of the relay that owns the sink, which the relay of the other build then owns", Tiers: both,
		run: upgrade, direct: true,
		Workload: "4,000 jobs (S: 200,000) from 4 producers that retry to 4 workers, and events of 50 keys to 2 relays; half of the workers and relays, and one of two servers (roles api and reap), are of the previous release, which created the schema; this build migrated it",
		Pass: jobsSafe + "; every order acknowledged by the end; " + eventsSafe +
			"; no errors that a retry does not solve; no request to either build's API fails; each build claims ≥ a tenth of the jobs and publishes events; the previous release refuses to run once the floor is above it",
	}
}

// programOf returns the binary that a process runs: processes with an odd number run the previous release.
func (r *Run) programOf(name string) string {
	if r.Previous != "" && older.MatchString(name) {
		return filepath.Join(r.Previous, "posthaste-proof")
	}
	return r.Program
}

var older = regexp.MustCompile(builds["the release before"])

func upgrade(ctx context.Context, r *Run) error {
	if err := r.expectUsable(ctx, "at the start"); err != nil {
		return err
	}
	const workers, kills = 4, 5
	p := &publishing{clients: 4, keys: 50, open: 4 * time.Millisecond, rest: 20 * time.Millisecond}
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	relays, err := r.relaysOfBoth()
	if err != nil {
		return errors.Join(err, p.stop())
	}
	servers, err := r.serversOfBoth(ctx)
	if err != nil {
		return errors.Join(err, p.stop())
	}
	f := flow{
		jobs: r.Size(4_000, 200_000), producers: 4, workers: workers, concurrency: 16,
		producerEnv: insisting(r.pace("20ms", "2ms")),
	}
	f.least = map[string]int{"kill -9 worker": kills, relayKilled: 2}
	f.faults = func(ctx context.Context, c *crew) error {
		return r.Inject(ctx, fault.Schedule(r.Seed, aLongTime,
			fault.Beat{Kind: "kill", Every: time.Second, Targets: workers},
			fault.Beat{Kind: relayKilled, Every: 2 * time.Second}), acts{
			"kill":      func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
			relayKilled: func(ctx context.Context, _ fault.Planned) error { return relays.replace(ctx) },
		})
	}
	wasted, err := f.run(ctx, r)
	if err := errors.Join(err, p.stop(), servers.stop(ctx)); err != nil {
		return err
	}
	r.Expect("executions without an error, beyond one per job", float64(wasted), "<=",
		float64(r.Faults.Count("kill -9 worker")*16))
	r.allAcked(f.jobs)
	if err := r.expectBoth(ctx, f.jobs); err != nil {
		return err
	}
	if err := r.expectPublished(ctx, relays, p.acked); err != nil {
		return err
	}
	if err := r.expectRetriesOnly(); err != nil {
		return err
	}
	return r.expectRefusal(ctx)
}

// builds are the patterns of the numbers at the end of the names of each build's processes.
var builds = map[string]string{"the release before": "[13579]$", "this build": "[02468]$"}

// expectBoth checks that each build claimed jobs.
func (r *Run) expectBoth(ctx context.Context, jobs int) error {
	for build, names := range builds {
		n, err := r.Number(ctx, `SELECT count(DISTINCT job) FROM verify.moves
			WHERE became = 'running' AND regexp_replace(owner, '-.*', '') ~ ('^w.*' || $1)`, names)
		if err != nil {
			return err
		}
		r.Expect("jobs claimed by "+build, float64(n), ">=", float64(jobs/10))
	}
	return nil
}

const relayKilled = "kill -9 relay"

// upgradeRelays are a relay of each build, one of which owns the sink. The first is of the release before.
type upgradeRelays struct {
	run     *Run
	all     [2]*child.Process
	started [2]int
}

// relaysOfBoth starts a relay of each build.
func (r *Run) relaysOfBoth() (*upgradeRelays, error) {
	u := &upgradeRelays{run: r}
	return u, errors.Join(u.start(0), u.start(1))
}

// start starts a relay of a build, by the number in its name (programOf).
func (u *upgradeRelays) start(build int) (err error) {
	number := 2*u.started[build] + build + 1
	u.started[build]++
	u.all[build], err = u.run.relay(fmt.Sprint("relay", number), "VERIFY_SINKS=s=ledger", "OUTBOX_LEASE_TTL=1s")
	return err
}

// replace kills the relay that owns the sink, and starts another of its build when the one of the other build has
// published: two that wait for the lease would compete for it, and one build might never own the sink.
func (u *upgradeRelays) replace(ctx context.Context) error {
	owner, err := u.publisher(ctx, 0, 0)
	if err != nil {
		return err
	}
	build := slices.IndexFunc(u.all[:], func(p *child.Process) bool { return p.PID() == owner })
	if build < 0 {
		return fmt.Errorf("process %d owns the sink, which is none of the two relays", owner)
	}
	u.run.Faults.Begin(relayKilled, u.all[build].Name)()
	if err := u.all[build].Kill9(); err != nil {
		return err
	}
	published, err := u.run.Number(ctx, `SELECT sum(published) FROM outbox.sinks`)
	if err != nil {
		return err
	}
	if _, err := u.publisher(ctx, owner, published); err != nil {
		return err
	}
	return u.start(build)
}

// publisher waits until more messages than the given number are published and a process other than the one that was
// killed owns the sink, and returns its number.
func (u *upgradeRelays) publisher(ctx context.Context, killed, published int) (owner int, err error) {
	err = u.run.Await(ctx, patience, "a relay to publish", func(ctx context.Context) (bool, error) {
		owner, err = u.run.Number(ctx, `SELECT coalesce(max((regexp_match(owner, '-(\d+)-[0-9a-f]{8}$'))[1]::int), 0)
			FROM outbox.sinks WHERE published > $1`, published)
		return owner != 0 && owner != killed, err
	})
	return owner, err
}

// expectPublished checks that the relays of both builds together published every event in order, and that each build
// published some.
func (r *Run) expectPublished(ctx context.Context, relays *upgradeRelays, acked map[string]time.Time) error {
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.stop(ctx, relays.all[:]...); err != nil {
		return err
	}
	repeats, err := r.checkRelayed(ctx, acked)
	if err != nil {
		return err
	}
	r.Expect("messages that were published twice", float64(repeats), "<=", float64(r.Faults.Count(relayKilled)*relayBatch))
	by := map[string]int{}
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		if e.Event == ledger.Published {
			by[e.Worker]++
		}
	}
	for build, names := range builds {
		n, pattern := 0, regexp.MustCompile(names)
		for relay, published := range by {
			if pattern.MatchString(relay) {
				n += published
			}
		}
		r.Expect("events published by "+build, float64(n), ">=", 1)
	}
	return nil
}

// expectUsable checks that both builds report the schema as usable.
func (r *Run) expectUsable(ctx context.Context, when string) error {
	for _, folder := range []string{r.Previous, filepath.Dir(r.Program)} {
		said, code, err := r.migrateStatus(ctx, folder)
		if err != nil {
			return err
		}
		r.Expect("exit status of posthaste migrate status "+when+", build in "+filepath.Base(folder), float64(code),
			"=", 0, said)
	}
	return nil
}

// expectRefusal raises the floor above the older build, as the next release would, and checks that the older build
// refuses to work.
func (r *Run) expectRefusal(ctx context.Context) error {
	if _, err := r.DB.Exec(ctx, `INSERT INTO outbox.schema_files VALUES ('floor/next', sha256(''), 1000)`); err != nil {
		return err
	}
	said, code, err := r.migrateStatus(ctx, r.Previous)
	if err != nil {
		return err
	}
	r.Expect("exit status of a build below the floor", float64(code), "=", 1, said)
	if !strings.Contains(said, "run release next or a newer one") {
		r.None("messages of a build below the floor that do not say what to do", []string{said})
	}
	w, err := r.Worker("w1") // the older build
	if err != nil {
		return err
	}
	w.MayEnd()
	select {
	case <-w.Ended():
		r.Expect("exit status of a worker below the floor", float64(w.ExitCode()), "=", 1)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		r.None("workers below the floor that kept running", []string{w.Name})
	}
	return nil
}

// migrateStatus runs "posthaste migrate status" of a build, and returns its last line and its exit status.
func (r *Run) migrateStatus(ctx context.Context, folder string) (said string, code int, err error) {
	out, err := r.posthaste(ctx, folder, "migrate", "status").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code, err = exit.ExitCode(), nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], code, err
}

func (r *Run) posthaste(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "posthaste"), args...) //nolint:gosec // ours
	cmd.Env = []string{"DATABASE_URL=" + r.URL}
	return cmd
}

// ofARetry are the SQLSTATEs after which processes retry: the ones of broken connections, conflicts, locks that were
// not available, and a server that stops or starts.
var (
	sqlstate = regexp.MustCompile(`SQLSTATE (\w{5})`)
	ofARetry = []string{
		"08000", "08001", "08003", "08006", // connection failures
		"40001", "40P01", // serialization failure, deadlock
		"55P03",                            // lock not available
		"57P01", "57P02", "57P03", "57014", // shutdown, crash, start of the server, canceled statement
	}
	broken = regexp.MustCompile(`failed to connect|conn closed|connection re(set|fused)|broken pipe|unexpected EOF|` +
		`i/o timeout|context deadline exceeded|use of closed network connection`)
)

// retried reports whether processes retry after the error: whether it has a listed SQLSTATE or, without one, the
// message of a broken connection.
func retried(text string) bool {
	if m := sqlstate.FindStringSubmatch(text); m != nil {
		return slices.Contains(ofARetry, m[1])
	}
	return broken.MatchString(text)
}

// unsolved reports whether a line has an error that a retry does not solve, from the server or, as where a binary
// cannot scan a row, from the process.
func unsolved(l logLine) bool {
	failed := l.Level == "ERROR" || l.Err != "" || l.Error != ""
	return failed && !retried(l.Err+l.Error)
}

// expectRetriesOnly checks that the processes logged no errors except those after which they retry.
func (r *Run) expectRetriesOnly() error {
	var wrong []string
	for _, p := range r.all() {
		lines, err := logged(p, unsolved)
		if err != nil {
			return err
		}
		for _, l := range lines {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %s%s", p.Name, l.Msg, l.Err, l.Error))
		}
	}
	r.None("errors that a retry does not solve", wrong)
	r.Expect("attempts that ended with an error", float64(r.record.Counts["executions that returned an error"]), "=", 0)
	return nil
}
