package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Three workers do 30 000 jobs, and every second one of them is killed with -9
// and replaced. Each effect is made in the transaction that completes its job: in
// the end none is missing and none was made twice, no lease was used twice, and
// no job that was closed came back.
func TestKillAWorkerEverySecond(t *testing.T) {
	const jobs = 30_000
	s := newStory(t)
	heavy(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	env := []string{"OUTBOX_LEASE_TTL=2s", "VERIFY_CONCURRENCY=32"}
	var crew []*process
	for i := range 3 {
		crew = append(crew, s.worker(fmt.Sprintf("w%d", i), env...))
	}
	crew[0].ready()
	began := time.Now()
	ids := s.enqueueMany(jobs, func(i int) task { return task{N: i, Do: "effect", Ms: i % 40} })

	kills := 0
	for range time.Tick(time.Second) {
		if s.closed() >= jobs || time.Since(began) > patience {
			break
		}
		victim := random.IntN(len(crew))
		crew[victim].kill9()
		kills++
		crew[victim] = s.worker(fmt.Sprintf("w%d", len(crew)+kills-1), env...)
	}
	s.awaitClosed(jobs)
	t.Logf("%d jobs in %s with %d kills", jobs, time.Since(began).Round(time.Second), kills)

	starts := s.checkLedger()
	t.Logf("%d attempts were started, %d in vain", starts, starts-jobs)
	if kills < 3 {
		t.Errorf("only %d workers were killed: the story proves nothing", kills)
	}
	s.checkClosed(ids)
	s.checkEffects(ids)
}

// One job kills its process whenever it runs, among 200 good ones, and a
// supervisor starts the process again: the job is executed exactly as often as
// it has attempts, then it is dead and waits for a person. All others succeed.
func TestAPoisonJobIsBounded(t *testing.T) {
	s := newStory(t)
	ids := s.enqueueMany(100, func(i int) task { return task{N: i, Do: "effect", Ms: 50} })
	poison := s.enqueue(task{N: 666, Do: "exit"}, outbox.Options{MaxAttempts: 3})
	ids = append(ids, s.enqueueMany(100, func(i int) task { return task{N: 100 + i, Do: "effect", Ms: 50} })...)

	deaths := 0
	start := func() *process {
		p := s.worker(fmt.Sprintf("w%d", deaths), "OUTBOX_LEASE_TTL=2s", "VERIFY_CONCURRENCY=8")
		p.MayEnd()
		return p
	}
	worker := start()
	s.await("the poison job's death and everything else's success", func() bool {
		if !worker.Alive() {
			deaths++
			worker = start()
		}
		return s.row(poison).Status == "dead" && s.closed() == len(ids)
	})
	if got := s.row(poison); got.Attempt != 3 || got.LostLeases != 3 {
		t.Errorf("the poison job is %+v, want 3 attempts, each with a lost lease", got)
	}
	if n := len(s.ledger.of("start", ofJob(poison))); n != 3 || deaths != 3 {
		t.Errorf("the poison job was executed %d times and killed %d workers, want 3", n, deaths)
	}
	s.checkClosed(ids)
	s.checkEffects(ids)
	s.checkLedger()
}
