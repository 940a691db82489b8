package integration

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/outbox"
)

// verbs are what a zombie tries when it wakes; see internal/verify/probe/stall.go.
var verbs = []string{"succeed", "succeed-late", "fail", "fail-late", "discard", "snooze", "snooze-late", "extend", "guard", "complete"}

// A worker is stopped for longer than its leases, an operator retries its jobs, and the worker is continued before
// another has claimed them. Whatever it tries then (succeed, fail, give up, snooze, extend, a guarded write, Complete
// in a transaction) is refused and leaves the jobs unchanged, and its handlers learn that their leases are lost. Rows
// B1 and B2 of the scorecard repeat that with a worker that has taken over, and with a worker of the same name.
func TestAZombieIsRefusedWhileTheJobWaits(t *testing.T) {
	z := newZombie(t, outbox.Options{MaxAttempts: 1})
	posthaste(t, z.url, nil, "queues", "pause", "default")
	b := z.worker("b", zombieEnv...)
	for _, id := range z.ids {
		z.awaitStatus(id, outbox.Dead)
		posthaste(t, z.url, nil, "jobs", "retry", id.String())
	}
	z.wake()
	z.a.kill9() // otherwise it might rightly claim them
	b.ready()
	posthaste(t, z.url, nil, "queues", "resume", "default")
	z.awaitEntries(len(z.ids), "start", byWorker("b"))
	z.exec(`INSERT INTO gates DEFAULT VALUES`)
	z.awaitClosed(len(z.ids))
	z.check()
}

// zombie is a stopped worker that holds a job for each verb.
type zombie struct {
	*story
	a   *process
	ids []outbox.ID
}

// Each of the sixteen handlers uses at most one connection.
var zombieEnv = []string{"OUTBOX_LEASE_TTL=4s", "VERIFY_CONCURRENCY=16", "VERIFY_POOL=16"}

func newZombie(t *testing.T, options outbox.Options, env ...string) *zombie {
	z := &zombie{story: newStory(t)}
	z.a = z.worker("a", slices.Concat(zombieEnv, []string{"VERIFY_STALL=on"}, env)...).ready()
	z.ids = z.enqueueMany(len(verbs), func(i int) task { return task{N: i, Do: "stall", Verb: verbs[i]} }, options)
	z.awaitEntries(len(verbs), "stalled", byWorker("a"))
	z.a.signal(syscall.SIGSTOP)
	return z
}

// wake continues the zombie, waits until it has tried everything, and compares the jobs before and after.
func (z *zombie) wake() {
	z.Helper()
	before := z.stored()
	z.a.signal(syscall.SIGCONT)
	z.awaitEntries(len(verbs), "end", byWorker("a"))
	z.await("the zombie's settlements to be refused", func() bool { return len(z.refusals()) >= len(verbs) })
	if diff := cmp.Diff(before, z.stored()); diff != "" {
		z.Errorf("the zombie changed what is stored (-before +after):\n%s", diff)
	}
}

// refusals returns the jobs whose settlement the zombie logged as refused.
func (z *zombie) refusals() map[string]bool {
	jobs := map[string]bool{}
	for _, l := range z.a.logged("lease_lost") {
		jobs[l.Job] = true
	}
	return jobs
}

// stored returns all that the database stores about the jobs, except the leases, which their owner extends.
func (z *zombie) stored() []string {
	return z.texts(`
		SELECT (to_jsonb(jobs) - 'lease_expires_at')::text FROM outbox.jobs
		UNION ALL SELECT to_jsonb(history)::text FROM outbox.history
		UNION ALL SELECT to_jsonb(effects)::text FROM effects
		UNION ALL SELECT to_jsonb(attempts)::text FROM outbox.attempts
		ORDER BY 1`)
}

// check checks that the new owner completed every job, and that the zombie's handlers were refused and noticed it.
func (z *zombie) check() {
	z.Helper()
	z.checkClosed(z.ids)
	z.checkEffects(z.ids)
	z.checkLedger()
	for i, id := range z.ids {
		if got := z.row(id); got.Attempt != 1 || got.Epoch < 2 {
			z.Errorf("%s: the job ended as %+v, want attempt 1 and a risen epoch", verbs[i], got)
		}
		for _, e := range z.ledger.of("end", byWorker("a"), ofJob(id)) {
			prompt := slices.Contains([]string{"succeed", "fail", "discard", "snooze"}, verbs[e.N])
			if e.Epoch == 1 && !prompt && e.Cause != outbox.ErrLeaseLost.Error() {
				z.Errorf("%s: the zombie's context ended with cause %q, want %q", verbs[i], e.Cause, outbox.ErrLeaseLost)
			}
		}
	}
	for _, verb := range []string{"guard", "complete"} {
		refused := z.ledger.of("refused", byWorker("a"), func(e entry) bool { return verbs[e.N] == verb && e.Epoch == 1 })
		if len(refused) != 1 || refused[0].Error != "lease_lost" {
			z.Errorf("%s: the zombie was refused %v, want once with the lease lost", verb, fmt.Sprint(refused))
		}
	}
}
