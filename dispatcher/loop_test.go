package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// numbered returns a tenant's id; 0 is root.
func numbered(n int) outbox.ID {
	if n == 0 {
		return outbox.RootTenant
	}
	return outbox.ID{0: 1, 1: byte(n >> 8), 2: byte(n), 15: 9}
}

// rig is a queue at work with a memoryStore, by a virtual clock. Jobs that its workers have finished are gone, or wait
// again.
type rig struct {
	*memoryStore
	*loop
	dispatcher *Dispatcher
	done       chan outbox.ID // the tenants of jobs that have succeeded
	ends       *[]*attempt    // attempts whose handlers were called, in their order; read it when nothing runs
}

// small is a kind whose jobs always succeed.
type small struct{}

func (small) Kind() string { return "small" }

// inMemory starts a queue with the given number of workers in a bubble, and lets the test drive it. Polls are an hour
// apart unless the config sets another interval.
func inMemory(t *testing.T, workers int, handler func(context.Context, *outbox.Job[tiny]) error, config Config, drive func(r rig)) {
	t.Helper()
	mux := new(Mux)
	Handle(mux, handler)
	Handle(mux, func(context.Context, *outbox.Job[small]) error { return nil })
	inMemoryOf(t, workers, mux, config, drive)
}

// inMemoryOf starts a queue as inMemory does, with the test's own mux.
func inMemoryOf(t *testing.T, workers int, mux *Mux, config Config, drive func(r rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		config.Queues = map[string]QueueConfig{engine.DefaultQueue: {Concurrency: workers}}
		config.PollInterval = max(config.PollInterval, 0)
		if config.FallbackPollInterval == 0 {
			config.PollInterval, config.FallbackPollInterval = time.Hour, time.Hour
		}
		d, err := New(nil, mux, config)
		if err != nil {
			t.Fatal(err)
		}
		d.compose(t.Context(), nil, nil)
		d.common.health.Leave = func(error) {}
		d.common.phase.Store(claiming)
		q := d.queues[engine.DefaultQueue]
		r := rig{&memoryStore{routes: d.common.routes, capacity: q.capacity}, q, d, make(chan outbox.ID, 100_000), new([]*attempt)}
		q.claimer.claims, q.db, q.workers.pause.DB, q.searches.finder.DB = r, r, r, r
		ctx, stop := context.WithCancel(t.Context())
		var all, settling sync.WaitGroup
		settling.Go(func() {
			for a := range d.settler.ended {
				d.leases.Remove(leasesOf([]*attempt{a}))
				r.settle(a)
			}
		})
		all.Go(func() { q.run(ctx) })
		q.workers.start()
		drive(r)
		stop()
		all.Wait()
		q.batches.giveBack()
		q.workers.close()
		d.running.Wait()
		close(d.settler.ended)
		settling.Wait()
		d.settler.reporter.failures.End()
	})
}

// settle does what a settler and the database do.
func (r rig) settle(a *attempt) {
	switch a.outcome.Status {
	case outbox.Succeeded:
		r.done <- a.job.Tenant
	case outbox.Retrying, outbox.Pending:
		wait := a.outcome.Delay
		if a.outcome.Status == outbox.Pending || a.outcome.OutageLimit > 0 {
			a.job.Attempt--
			wait = cmp.Or(a.outcome.Wait, wait)
		}
		if !a.outcome.KeepDue {
			a.job.RunAt = time.Now().Add(wait)
		}
		r.put(a.job)
	}
	if !a.returned {
		*r.ends = append(*r.ends, a)
	}
	a.stored = true
	r.dispatcher.settler.reporter.report([]*attempt{a}, false)
	a.capacity.jobEnded()
}

// ended returns how many jobs have reached the status, with the code.
func (r rig) ended(status outbox.Status, code string) (n int) {
	for _, a := range *r.ends {
		if a.outcome.Status == status && a.outcome.Code == code {
			n++
		}
	}
	return n
}

// counts returns how many claims were sent, and how many surveys.
func (r rig) counts() (claims, surveys int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.claims), r.surveys
}

// sleep lets time pass, and then waits until all goroutines wait.
func (r rig) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// waiting returns how many jobs no claim has taken.
func (r rig) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.jobs)
}

func (r rig) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// The next poll finds jobs that nobody announces, and the time between polls depends on whether wake-ups arrive.
func TestALoopPollsForWhatNobodyAnnounces(t *testing.T) {
	t.Parallel()
	for name, hearing := range map[string]bool{"hearing": true, "deaf": false} {
		t.Run(name, func(t *testing.T) {
			var ran []time.Duration
			var began time.Time
			config := Config{PollInterval: 30 * time.Second, FallbackPollInterval: 2 * time.Second, Listening: func() bool { return hearing }}
			inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error {
				ran = append(ran, time.Since(began))
				return nil
			}, config, func(r rig) {
				synctest.Wait()
				began = time.Now()
				r.sleep(100 * time.Millisecond)
				r.add(outbox.RootTenant, 1, 0)
				r.sleep(time.Minute)
				want := 2 * time.Second
				if hearing {
					want = 30 * time.Second
				}
				if len(ran) != 1 || ran[0] != want {
					t.Errorf("ran after %v, want after %s", ran, want)
				}
				// At each poll one of each, and one more of each at the start and for the job.
				if claims, surveys := r.counts(); claims > 2+int(time.Minute/want) || surveys > 2+int(time.Minute/want) {
					t.Errorf("%d claims and %d surveys in a minute", claims, surveys)
				}
			})
		})
	}
}

// A loop sleeps until the next job is due, and asks the database nothing meanwhile.
func TestALoopWakesWhenAJobIsDue(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ran := map[time.Duration]int{}
	var began time.Time
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error {
		mu.Lock()
		defer mu.Unlock()
		ran[time.Since(began)]++
		return nil
	}, Config{}, func(r rig) {
		began = time.Now()
		r.add(numbered(0), 1, 10*time.Minute)
		r.add(numbered(1), 2, 20*time.Minute)
		r.add(numbered(2), 1, 20*time.Minute+time.Second)
		r.capacity.Poke()
		r.sleep(9 * time.Minute)
		claims, surveys := r.counts()
		r.sleep(59 * time.Second)
		if c, s := r.counts(); c != claims || s != surveys {
			t.Errorf("%d claims and %d surveys while nothing is due", c-claims, s-surveys)
		}
		r.sleep(30 * time.Minute)
		if len(ran) != 3 || ran[10*time.Minute] != 1 || ran[20*time.Minute] != 2 || ran[20*time.Minute+time.Second] != 1 {
			t.Errorf("ran %v", ran)
		}
	})
}

// Another transaction has a job's row locked when the job becomes due, and leaves the job as it is. The claim passes by
// it, nobody is notified of the end of the transaction, and no later survey shows the job as due:
//
//	transaction   lock J                                            roll back
//	loop                   J is due: claim nothing, ask: J is left             claim J
//
// It starts soon after the transaction has ended, and the loop looks ever more seldom until then. A job that another
// process has taken is not looked for.
func TestAJobThatIsLockedWhenItIsDueStartsSoonAfter(t *testing.T) {
	t.Parallel()
	for whose, n := range map[string]int{"root's": 0, "another tenant's": 3} {
		t.Run(whose, func(t *testing.T) {
			inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
				r.add(numbered(n), 1, 10*time.Second)
				r.set(func() { r.locked = map[outbox.ID]bool{r.jobs[0].ID: true} })
				r.capacity.Poke()
				r.sleep(5 * time.Second)
				before, _ := r.counts()
				r.sleep(15 * time.Second)
				if claims, _ := r.counts(); claims-before < 9 || claims-before > 20 {
					t.Errorf("%d claims while the job was locked for ten seconds, want about 15", claims-before)
				}
				r.set(func() { r.locked = nil })
				r.sleep(scheduler.LockedPause(100))
				if len(r.done) != 1 {
					t.Errorf("%d jobs have succeeded, want the one that was locked", len(r.done))
				}
				r.add(numbered(n), 1, time.Second)
				r.set(func() { r.locked = map[outbox.ID]bool{r.jobs[0].ID: true} })
				r.capacity.Poke()
				r.sleep(time.Second)
				r.set(func() { r.jobs = nil }) // the claim of the other process is committed
				r.sleep(time.Second)
				before, surveys := r.counts()
				r.sleep(50 * time.Minute)
				if claims, s := r.counts(); claims != before || s != surveys {
					t.Errorf("%d claims and %d surveys for a job that another process has", claims-before, s-surveys)
				}
			})
		})
	}
}

// The first job of a tenant that is new to the queue starts within milliseconds, although another tenant has thousands
// of due jobs and all the workers that one tenant may hold, and reads from the front have become expensive because a
// transaction holds a snapshot.
func TestANewTenantsJobStartsBesideABacklog(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"without keys": "", "with keys": "k"} {
		for whose, newcomer := range map[string]int{"another tenant": 7, "root": 0} {
			t.Run(whose+", "+name, func(t *testing.T) {
				var mu sync.Mutex
				var began time.Time
				var waits []time.Duration
				inMemory(t, 64, func(_ context.Context, job *outbox.Job[tiny]) error {
					if mu.Lock(); job.Tenant == numbered(newcomer) {
						waits = append(waits, time.Since(began))
					}
					mu.Unlock()
					time.Sleep(20 * time.Millisecond)
					return nil
				}, Config{}, func(r rig) {
					r.set(func() {
						r.take = func(c claimRequest) time.Duration {
							if c.front {
								return 200 * time.Millisecond
							}
							return time.Millisecond
						}
					})
					r.addKeyed(numbered(1), 8_000, 0, key)
					r.capacity.Poke()
					r.sleep(time.Second)
					if r.waiting() == 0 {
						t.Fatal("the backlog is gone")
					}
					began = time.Now()
					r.addKeyed(numbered(newcomer), 1, 0, key)
					r.capacity.Poke()
					r.sleep(500 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					if len(waits) != 1 || waits[0] > 250*time.Millisecond {
						t.Errorf("it started after %v, want within one claim from the front", waits)
					}
					if r.waiting() == 0 {
						t.Error("the backlog is gone")
					}
				})
			})
		}
	}
}

// Jobs committed behind the cursors are found within forty times the cost of a claim from the front, and such claims
// take no more than about a fortieth of the time.
func TestClaimsBeginAtTheFrontAsOftenAsTheyMay(t *testing.T) {
	t.Parallel()
	for whose, tenant := range map[string]int{"root": 0, "another tenant": 3} {
		t.Run(whose, func(t *testing.T) {
			const front = 100 * time.Millisecond
			late := make(chan time.Duration, 1)
			var began time.Time
			inMemory(t, 8, func(_ context.Context, job *outbox.Job[tiny]) error {
				if job.RunAt.Before(began.Add(-time.Minute)) && !began.IsZero() {
					late <- time.Since(began)
				}
				return nil
			}, Config{}, func(r rig) {
				r.set(func() {
					r.take = func(c claimRequest) time.Duration {
						if c.front {
							return front
						}
						return time.Millisecond
					}
				})
				fronts := 0
				for range 600 { // a minute
					r.add(numbered(tenant), 1, 0)
					r.capacity.Poke()
					r.sleep(100 * time.Millisecond)
				}
				r.set(func() {
					for _, c := range r.claims {
						if c.front {
							fronts++
						}
					}
				})
				if fronts < 10 || fronts > 20 {
					t.Errorf("%d claims from the front in a minute, want about one in four seconds", fronts)
				}
				began = time.Now()
				r.add(numbered(tenant), 1, -2*time.Minute)
				r.sleep(time.Minute)
				if waited := <-late; waited > (scheduler.RestFactor+3)*front {
					t.Errorf("it was found after %s, want within %s", waited, scheduler.RestFactor*front)
				}
			})
		})
	}
}

// A tenant's job is committed, and notified, after a survey and before the claim that follows it, which finds another
// tenant's. The wake-up must lead to another look.
func TestAWakeUpDuringAClaimIsAnsweredByASurvey(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		late := -1
		r.set(func() {
			r.take = func(claimRequest) time.Duration {
				if late >= 0 {
					r.add(numbered(late), 1, 0)
					r.capacity.Poke()
					late = -1
				}
				return time.Millisecond
			}
		})
		for n := range 20 {
			r.sleep(time.Second)
			late = 2*n + 2
			r.add(numbered(2*n+1), 1, 0)
			r.capacity.Poke()
			r.sleep(200 * time.Millisecond)
			if len(r.done) != 2*n+2 {
				t.Fatalf("waited in vain: both jobs run; %d have", len(r.done)-2*n)
			}
		}
	})
}

// What the attached producer's wake-ups have found decides how the next ones are answered.
func TestOwnWakeUpsPayWhileTheyFindJobs(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.sleep(time.Second) // the look at the start would find the first job, and the wake-up nothing
		wake := func(jobs int) {
			r.add(outbox.RootTenant, jobs, 0)
			r.capacity.PokeOwn()
			r.sleep(time.Second)
		}
		if wake(1); !r.pace.OwnFinds {
			t.Error("wake-ups that find jobs are not trusted")
		}
		if wake(0); r.pace.OwnFinds {
			t.Error("wake-ups that find nothing are trusted")
		}
		if wake(1); !r.pace.OwnFinds {
			t.Error("a wake-up that found a job is not trusted")
		}
	})
}

// The attached producer enqueues a job while the loop drains a backlog. The drain claims that job, too, and the wake-up
// counts as one that has found a job.
func TestAnOwnWakeUpDuringADrainPays(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.set(func() { r.take = func(claimRequest) time.Duration { return time.Millisecond } })
		r.add(outbox.RootTenant, 500, 0)
		r.capacity.Poke()
		time.Sleep(1500 * time.Microsecond) // the second claim is under way
		r.add(outbox.RootTenant, 1, 0)
		r.capacity.PokeOwn()
		r.sleep(time.Second)
		if len(r.done) != 501 || !r.pace.OwnFinds {
			t.Errorf("%d jobs are done; wake-ups of the attached producer are trusted: %t", len(r.done), r.pace.OwnFinds)
		}
	})
}

// A tenant whose jobs take a minute holds all workers except the reserved ones: another tenant's job starts at once,
// and does not wait until one of them ends.
func TestATenantsLongJobsLeaveWorkersForOthers(t *testing.T) {
	t.Parallel()
	for whose, lone := range map[string]int{"root's": 0, "another tenant's": 2} {
		t.Run(whose, func(t *testing.T) {
			started := make(chan time.Duration, 1)
			var began time.Time
			inMemory(t, 32, func(_ context.Context, job *outbox.Job[tiny]) error {
				if job.Tenant == numbered(lone) {
					started <- time.Since(began)
					return nil
				}
				time.Sleep(time.Minute)
				return nil
			}, Config{}, func(r rig) {
				r.add(numbered(1), 100, 0)
				r.capacity.Poke()
				r.sleep(10 * time.Second)
				began = time.Now()
				r.add(numbered(lone), 1, 0)
				r.capacity.Poke()
				r.sleep(10 * time.Second)
				select {
				case waited := <-started:
					if waited > 100*time.Millisecond {
						t.Errorf("it started after %s", waited)
					}
				default:
					t.Error("it has not started after ten seconds")
				}
				r.sleep(10 * time.Minute)
			})
		})
	}
}

// A job that is more urgent than any before it starts at once, while the queue is idle.
func TestUrgentJobIsFoundWhileTheQueueIsIdle(t *testing.T) {
	t.Parallel()
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		for n, priority := range []int{32767, -32768, 1, -1, 300} {
			r.addAt(priority, outbox.RootTenant, "")
			r.capacity.Poke()
			r.sleep(100 * time.Millisecond)
			if got := len(r.done); got != n+1 {
				t.Errorf("%d jobs have succeeded, want %d: the last one has priority %d", got, n+1, priority)
			}
		}
	})
}

// Nothing announces it, and the queue has work for six seconds: it starts within one.
func TestUrgentJobIsFoundWhileTheQueueIsBusy(t *testing.T) {
	t.Parallel()
	var began, started time.Time
	inMemory(t, 2, func(_ context.Context, job *outbox.Job[tiny]) error {
		if job.Priority > 0 {
			started = time.Now()
			return nil
		}
		time.Sleep(4 * time.Millisecond)
		return nil
	}, Config{}, func(r rig) {
		r.add(outbox.RootTenant, 3000, 0)
		r.capacity.Poke()
		r.sleep(200 * time.Millisecond)
		began = time.Now()
		r.addAt(9, outbox.RootTenant, "")
		r.sleep(time.Minute)
		if waited := started.Sub(began); started.IsZero() || waited > time.Second {
			t.Errorf("it started at %s, %s after it was stored", started, waited)
		}
	})
}

// Each wake-up of a burst may find that a look is under way.
func TestABurstOfWakeUpsFindsEveryJob(t *testing.T) {
	t.Parallel()
	const jobs = 200
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.set(func() {
			r.take = func(claimRequest) time.Duration { return 300 * time.Microsecond }
			r.answer = func() time.Duration { return 200 * time.Microsecond }
		})
		for range jobs {
			r.add(outbox.RootTenant, 1, 0)
			r.capacity.Poke()
			r.sleep(100 * time.Microsecond)
		}
		r.sleep(time.Second)
		if n := len(r.done); n != jobs {
			t.Errorf("%d jobs have succeeded, want %d", n, jobs)
		}
	})
}

// Two jobs become due within a moment: the second may do so while the first is being claimed, or between the claim and
// the answer of the survey that follows. Nothing wakes the queue after it.
func TestWhatBecomesDueDuringALookStartsInTime(t *testing.T) {
	t.Parallel()
	for whose, tenant := range map[string]outbox.ID{"root's": numbered(0), "another tenant's": numbered(1)} {
		t.Run(whose, func(t *testing.T) {
			var due time.Time
			var last atomic.Int64
			handler := func(context.Context, *outbox.Job[tiny]) error { last.Store(time.Now().UnixNano()); return nil }
			inMemory(t, 2, handler, Config{}, func(r rig) {
				r.set(func() {
					r.take = func(claimRequest) time.Duration { return time.Millisecond }
					r.answer = func() time.Duration { return time.Millisecond }
				})
				for n := range 100 {
					gap := time.Duration(n) * 50 * time.Microsecond
					due = time.Now().Add(time.Second + gap)
					r.add(tenant, 1, time.Second)
					r.add(tenant, 1, time.Second+gap)
					r.capacity.Poke()
					r.sleep(3 * time.Second)
					if got := len(r.done); got != 2*n+2 {
						t.Fatalf("one that is due %s after the other waits for the poll: %d jobs have succeeded, want %d", gap, got, 2*n+2)
					}
					if late := time.Unix(0, last.Load()).Sub(due); late < 0 || late > 20*time.Millisecond {
						t.Errorf("one that is due %s after the other started %s late", gap, late)
					}
				}
			})
		})
	}
}

// One of a tenant's jobs is due, and the next one of its priority is due soon. Only one survey runs: it must return
// both.
func TestAFlowThatIsDueTellsWhatIsDueNext(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		for n := range 3 {
			r.add(numbered(1), 1, 0)
			r.add(numbered(1), 1, 300*time.Millisecond)
			r.capacity.Poke()
			r.sleep(time.Second)
			if got := len(r.done); got != 2*n+2 {
				t.Errorf("%d jobs have succeeded, want %d", got, 2*n+2)
			}
		}
	})
}

// A job that is announced while the queue sleeps may be due before the one for which it sleeps.
func TestAnAnnouncedJobIsDueBeforeTheNext(t *testing.T) {
	t.Parallel()
	var began time.Time
	var ran []time.Duration
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error {
		ran = append(ran, time.Since(began))
		return nil
	}, Config{}, func(r rig) {
		began = time.Now()
		r.add(numbered(0), 1, 10*time.Minute)
		r.capacity.Poke()
		r.sleep(time.Minute)
		r.add(numbered(0), 1, time.Minute)
		r.capacity.Poke()
		r.sleep(time.Hour)
		if len(ran) != 2 || ran[0] != 2*time.Minute || ran[1] != 10*time.Minute {
			t.Errorf("ran after %v, want after 2 and 10 minutes", ran)
		}
	})
}

// A start further away than a time.Duration can reach is not due at once: otherwise the queue would ask again without
// end.
func TestAFarStartDoesNotSpin(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
		job.RunAt = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
		r.put(job)
		r.capacity.Poke()
		r.sleep(24 * time.Hour)
		if claims, surveys := r.counts(); claims > 60 || surveys > 60 {
			t.Errorf("%d claims and %d surveys in a day of hourly polls", claims, surveys)
		}
	})
}

// One search took half a second, as on a busy machine. That must not keep the queue from searching for a new priority
// until a multiple of that time is over.
func TestASlowSurveyIsNotBelieved(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.sleep(time.Minute)
		slow := true
		r.set(func() {
			r.answer = func() time.Duration {
				if slow {
					slow = false
					return 500 * time.Millisecond
				}
				return time.Millisecond
			}
		})
		for n, priority := range []int{10, 5} {
			r.addAt(priority, outbox.RootTenant, "")
			r.capacity.Poke()
			r.sleep(2 * time.Second)
			if got := len(r.done); got != n+1 || slow {
				t.Errorf("the job of priority %d has not run within two seconds", priority)
			}
		}
	})
}

// Looks that failed because the database did not answer do not count as too expensive: jobs behind the cursors, and
// jobs of another tenant, are found as soon as it is back.
func TestWhatCameInAnOutageIsFoundAfterIt(t *testing.T) {
	t.Parallel()
	for whose, tenant := range map[string]int{"root's": 0, "another tenant's": 4} {
		t.Run(whose, func(t *testing.T) {
			inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
				r.add(numbered(tenant), 50, 0)
				r.capacity.Poke()
				r.sleep(time.Second)
				r.set(func() {
					r.away = context.DeadlineExceeded
					r.take = func(claimRequest) time.Duration { return statementTimeout }
					r.answer = func() time.Duration { return statementTimeout }
				})
				r.add(numbered(tenant), 1, -time.Hour)
				r.add(numbered(5), 1, 0)
				r.capacity.Poke()
				r.sleep(20 * time.Second)
				r.set(func() { r.away, r.take, r.answer = nil, nil, nil })
				r.sleep(15 * time.Second)
				if n := len(r.done); n != 52 {
					t.Errorf("%d jobs have succeeded fifteen seconds after the outage, want 52", n)
				}
			})
		})
	}
}

// One tenant has many jobs, and many tenants have a few: more tenants than one survey returns. The few are done long
// before the many, and each job runs once.
func TestABacklogOfOneTenantLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	const backlog, tenants, each = 2000, 75, 5
	for name, key := range map[string]string{"without keys": "", "with keys": "k"} {
		for whose, busy := range map[string]int{"another's": 1, "root's": 0} {
			t.Run(whose+", "+name, func(t *testing.T) {
				t.Parallel()
				inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error {
					time.Sleep(50 * time.Microsecond)
					return nil
				}, Config{}, func(r rig) {
					r.addKeyed(numbered(busy), backlog, -time.Second, key)
					for n := range tenants {
						r.addKeyed(numbered(n+2), each, 0, key)
					}
					r.capacity.Poke()
					r.sleep(time.Minute)
					const total = backlog + tenants*each
					if n := len(r.done); n != total {
						t.Fatalf("%d jobs have succeeded, want %d", n, total)
					}
					last := 0
					for n := range total {
						if <-r.done != numbered(busy) {
							last = n
						}
					}
					if last > backlog*3/4 {
						t.Errorf("the last job of the small tenants is number %d of %d", last, total)
					}
				})
			})
		}
	}
}

// As many jobs run at once as there are workers, and when one ends the next one starts.
func TestAQueueRunsAsManyJobsAsItHasWorkers(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 7} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			var running, most atomic.Int64
			inMemory(t, workers, func(context.Context, *outbox.Job[tiny]) error {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(time.Second)
				return nil
			}, Config{}, func(r rig) {
				r.add(outbox.RootTenant, 60, 0)
				r.capacity.Poke()
				r.sleep(65 * time.Second)
				if n := len(r.done); n != 60 || most.Load() != int64(workers) {
					t.Errorf("in vain: 60 jobs succeed, %d at once; %d have, %d at once", workers, n, most.Load())
				}
			})
		})
	}
}

// Each queue has workers of its own.
func TestQueuesHaveTheirOwnConcurrency(t *testing.T) {
	t.Parallel()
	d, err := New(nil, new(Mux), Config{Queues: map[string]QueueConfig{"narrow": {Concurrency: 1}, "wide": {Concurrency: 7}, "usual": {}}})
	if err != nil {
		t.Fatal(err)
	}
	d.compose(t.Context(), nil, nil)
	for name, want := range map[string]int{"narrow": 1, "wide": 7, "usual": defaultConcurrency} {
		if q := d.queues[name]; q.capacity.concurrency != want || q.capacity.room() != want {
			t.Errorf("queue %s runs %d jobs at once and has room for %d, want %d", name, q.capacity.concurrency, q.capacity.room(), want)
		}
	}
	if d.queues["narrow"].workers == d.queues["wide"].workers {
		t.Error("two queues share their workers")
	}
}

// A tenant's jobs with a key and those without take turns for the one place that there is, also where it becomes free
// so seldom that each claim follows a survey.
func TestJobsWithAndWithoutKeysTakeTurnsForOnePlace(t *testing.T) {
	t.Parallel()
	for _, whose := range []int{0, 1} {
		for _, takes := range []time.Duration{time.Millisecond, 200 * time.Millisecond} {
			t.Run(fmt.Sprintf("tenant %d, jobs of %s", whose, takes), func(t *testing.T) {
				t.Parallel()
				var keyed, plain atomic.Int64
				inMemory(t, 1, func(_ context.Context, job *outbox.Job[tiny]) error {
					if time.Sleep(takes); job.Key != "" {
						keyed.Add(1)
					} else {
						plain.Add(1)
					}
					return nil
				}, Config{}, func(r rig) {
					const each = 500
					r.add(numbered(whose), each, 0)
					r.addKeyed(numbered(whose), each, 0, "k")
					r.capacity.Poke()
					r.sleep(100*takes + takes/2)
					with, without := keyed.Load(), plain.Load()
					if n := with + without; n < 50 || n > 2*each-100 || min(with, without) < n/4 {
						t.Errorf("%d jobs with a key have run and %d without, want half of each", with, without)
					}
					r.sleep(2 * each * takes)
				})
			})
		}
	}
}

// Two tenants with many jobs each take turns, even if the jobs of one are all older.
func TestTwoBacklogsWithKeysTakeTurns(t *testing.T) {
	t.Parallel()
	const each = 2000
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error {
		time.Sleep(time.Millisecond)
		return nil
	}, Config{}, func(r rig) {
		r.addKeyed(numbered(1), each, -time.Second, "k")
		r.addKeyed(numbered(2), each, 0, "k")
		r.capacity.Poke()
		r.sleep(time.Minute)
		if n := len(r.done); n != 2*each {
			t.Fatalf("%d jobs have succeeded, want %d", n, 2*each)
		}
		late := 0
		for range each {
			if <-r.done == numbered(2) {
				late++
			}
		}
		if late < each/3 {
			t.Errorf("of the first %d that have succeeded %d are of the tenant whose jobs are younger, want nearly half", each, late)
		}
	})
}

// While a process has as many jobs in its buffer as it can hold, a job of another tenant is claimed all the same, and
// starts before the buffered ones. Root is such a tenant, too.
func TestAJobOvertakesTheBuffer(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"without keys": "", "with keys": "k"} {
		for whose, overtaking := range map[string]int{"another tenant's": 2, "root's": 0} {
			t.Run(whose+", "+name, func(t *testing.T) {
				var before, others, overtook int
				var slow chan struct{}
				inMemory(t, 1, func(_ context.Context, job *outbox.Job[tiny]) error {
					switch others++; {
					case job.Tenant == numbered(overtaking):
						overtook = others
					case others <= 500: // until then they are so short that it claims far ahead
						time.Sleep(100 * time.Microsecond)
					case others == 501:
						<-slow
					default:
						time.Sleep(time.Millisecond)
					}
					return nil
				}, Config{}, func(r rig) {
					slow = make(chan struct{})
					r.addKeyed(numbered(1), 2000, 0, key)
					r.capacity.Poke()
					r.sleep(100 * time.Millisecond)
					claimed := r.capacity.inHand.Load()
					if claimed < 200 {
						t.Fatalf("%d jobs were fetched ahead, want more to see anything", claimed)
					}
					before = others
					r.addKeyed(numbered(overtaking), 1, 0, key)
					r.capacity.Poke()
					r.sleep(100 * time.Millisecond)
					close(slow)
					r.sleep(time.Second)
					if waited := overtook - before - 1; overtook == 0 || waited > 50 {
						t.Errorf("%d others have started before it, %d were fetched ahead", waited, claimed)
					}
					r.sleep(time.Minute)
				})
			})
		}
	}
}

// Handlers became slower after the jobs were claimed: jobs that wait in the buffer go back, for other processes to
// take, and no more are claimed ahead.
func TestStaleBufferGoesBack(t *testing.T) {
	t.Parallel()
	var finish chan struct{}
	started := 0
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error {
		if started++; started == 50 {
			<-finish
		}
		time.Sleep(10 * time.Microsecond)
		return nil
	}, Config{}, func(r rig) {
		finish = make(chan struct{})
		r.add(outbox.RootTenant, 300, 0)
		r.capacity.Poke()
		r.sleep(time.Second)
		if n := r.capacity.inHand.Load(); n < 20 {
			t.Fatalf("%d jobs are in hand, want some in the buffer", n)
		}
		r.sleep(2 * staleAfter)
		if n, w := r.capacity.inHand.Load(), r.waiting(); n != 1 || w != 250 {
			t.Errorf("%d jobs are in hand and %d wait, want 1 and 250", n, w)
		}
		close(finish)
		r.sleep(time.Minute)
		if n := len(r.done); n != 300 {
			t.Errorf("%d jobs have succeeded, want 300", n)
		}
	})
}

// Handlers become slow when more than a hundred jobs have been claimed ahead. A job that has not started a second after
// a pause goes back, and starts after the queue is resumed.
func TestNothingStartsASecondAfterAPause(t *testing.T) {
	t.Parallel()
	const jobs, quick = 2000, 300
	var latest time.Time
	started, resumed := 0, false
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error {
		if started++; started >= quick && !resumed {
			latest = time.Now()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Microsecond)
		return nil
	}, Config{}, func(r rig) {
		r.add(outbox.RootTenant, jobs, 0)
		r.capacity.Poke()
		r.sleep(200 * time.Millisecond)
		paused, ahead := time.Now(), r.capacity.inHand.Load()
		if ahead < 50 {
			t.Fatalf("%d jobs were claimed ahead, want more to see anything", ahead)
		}
		r.set(func() { r.paused = true })
		r.sleep(10 * time.Second)
		if late := latest.Sub(paused); late < 0 || late > time.Second {
			t.Errorf("the last job started %s after the pause", late)
		}
		if n := r.capacity.inHand.Load(); n != 0 {
			t.Errorf("%d jobs are still held", n)
		}
		r.set(func() { r.paused, resumed = false, true })
		r.capacity.Poke()
		r.sleep(time.Minute)
		if n := len(r.done); n != jobs {
			t.Errorf("%d jobs have succeeded, want %d", n, jobs)
		}
	})
}

// A few jobs find out that their kind's host is unavailable. It is probed at growing distances, up to a minute in a
// long outage; all waiting jobs run when a probe has reached the host.
func TestProbesOfAnOutageGrowRare(t *testing.T) {
	t.Parallel()
	for whose, tenant := range map[string]int{"root's": 0, "another tenant's": 4} {
		t.Run(whose, func(t *testing.T) {
			const jobs = 2000
			var mu sync.Mutex
			away, calls, last := true, 0, time.Time{}
			var longest time.Duration
			inMemory(t, 16, func(context.Context, *outbox.Job[tiny]) error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				if !last.IsZero() {
					longest = max(longest, time.Since(last))
				}
				if last = time.Now(); away {
					return Unavailable(errors.New("away"), 0)
				}
				return nil
			}, Config{}, func(r rig) {
				r.add(numbered(tenant), jobs, 0)
				r.capacity.Poke()
				for _, step := range []struct {
					lasts       time.Duration
					least, most int           // calls
					gap         time.Duration // the longest between two, at most
				}{{20 * time.Second, 7, 50, 6 * time.Second}, {time.Hour, 60, 200, time.Minute + time.Second}} {
					mu.Lock()
					calls, longest = 0, 0
					mu.Unlock()
					r.sleep(step.lasts)
					mu.Lock()
					if calls < step.least || calls > step.most || longest > step.gap {
						t.Errorf("in %s %d jobs were tried, want %d to %d; the longest time between two was %s, want up to %s",
							step.lasts, calls, step.least, step.most, longest, step.gap)
					}
					mu.Unlock()
				}
				mu.Lock()
				away = false
				mu.Unlock()
				r.sleep(time.Minute + time.Second)
				mu.Lock()
				calls = 0
				mu.Unlock()
				r.sleep(10 * time.Minute) // jobs that were tried wait on their own
				if n := len(r.done); n != jobs {
					t.Errorf("%d jobs have succeeded, want %d", n, jobs)
				}
			})
		})
	}
}

// Jobs that claims have passed by while their kind was unavailable run when the kind is back, even while looks from the
// front are too expensive to be frequent.
func TestWhatWasPassedByRunsWhenItsKindIsBack(t *testing.T) {
	t.Parallel()
	for whose, tenant := range map[string]int{"root's": 0, "another tenant's": 4} {
		t.Run(whose, func(t *testing.T) {
			const jobs = 300
			var away atomic.Bool
			away.Store(true)
			inMemory(t, 16, func(context.Context, *outbox.Job[tiny]) error {
				if away.Load() {
					return Unavailable(errors.New("away"), 0)
				}
				return nil
			}, Config{}, func(r rig) {
				of := numbered(tenant)
				r.add(of, jobs, 0)
				r.capacity.Poke()
				r.sleep(5 * time.Second)
				r.set(func() {
					r.take = func(claim claimRequest) time.Duration {
						if claim.front {
							return 10 * time.Second
						}
						return 0
					}
				})
				others, fromFront := 0, func() (n int) {
					r.set(func() {
						for _, c := range r.claims {
							if c.front {
								n++
							}
						}
					})
					return n
				}
				for before := fromFront(); fromFront() == before; others++ {
					r.addOf(small{}.Kind(), of, 1, 0, "")
					r.capacity.Poke()
					r.sleep(time.Second)
				}
				r.sleep(15 * time.Second) // the look from the front is over, and the next one is not before 400 s
				away.Store(false)
				r.sleep(2 * time.Minute)
				if n := len(r.done); n != jobs+others {
					t.Errorf("%d jobs have succeeded two minutes after the kind was back, want %d", n, jobs+others)
				}
			})
		})
	}
}

// While the database is unreachable a loop asks seldom, and it continues soon when the database is back.
func TestALoopWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	inMemory(t, 4, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.set(func() { r.away = errors.New("connection refused") })
		r.add(outbox.RootTenant, 1, 0)
		r.capacity.Poke()
		r.sleep(time.Minute)
		before, surveys := r.counts()
		r.sleep(time.Minute)
		if after, s := r.counts(); after+s-before-surveys > 60 || after+s == before+surveys {
			t.Errorf("%d statements in a minute of outage", after+s-before-surveys)
		}
		r.set(func() { r.away = nil })
		r.sleep(10 * time.Second)
		if len(r.done) != 1 {
			t.Error("the job has not run ten seconds after the database was back")
		}
	})
}

// A job that was committed late, and that nothing announces, is found by the next poll, however busy the queue is with
// other tenants' jobs. The survey in between shows only what became due since the survey before: this job was due
// earlier.
func TestABusyLoopPollsForWhatWasCommittedLate(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]func(r rig){
		"due now and then": func(r rig) {
			for i := range 60 {
				r.add(numbered(1), 1, time.Duration(i)*500*time.Millisecond)
			}
		},
		"a backlog": func(r rig) { r.add(numbered(1), 400, 0) },
	} {
		for _, late := range []struct {
			of  outbox.ID
			key string
		}{{numbered(2), ""}, {numbered(2), "k"}, {numbered(1), "k"}, {numbered(0), ""}} {
			t.Run(fmt.Sprintf("%s/%s %s", name, late.of, late.key), func(t *testing.T) {
				var ran atomic.Int64
				handler := func(_ context.Context, job *outbox.Job[tiny]) error {
					if job.Tenant == late.of && job.Key == late.key {
						ran.Store(int64(time.Since(job.RunAt)))
					} else {
						time.Sleep(200 * time.Millisecond)
					}
					return nil
				}
				config := Config{PollInterval: 2 * time.Second, FallbackPollInterval: 2 * time.Second}
				inMemory(t, 4, handler, config, func(r rig) {
					r.addKeyed(late.of, 1, 0, late.key) // its flow is known, and drained
					r.sleep(5 * time.Second)
					ran.Store(0)
					busy(r)
					r.sleep(3 * time.Second)
					r.addKeyed(late.of, 1, -time.Second, late.key)
					r.sleep(4 * time.Second)
					if after := time.Duration(ran.Load()); after == 0 || after > 3500*time.Millisecond {
						t.Errorf("it ran %s after it was due, want a poll after it came", after)
					}
				})
			})
		}
	}
}

// While claims from the front are expensive, each of them looks at every flow: also at one that has nothing behind its
// cursor, while another has a backlog.
func TestAClaimFromTheFrontLooksAtEveryFlow(t *testing.T) {
	t.Parallel()
	const front = 100 * time.Millisecond
	for name, key := range map[string]string{"plain": "", "keyed": "k"} {
		t.Run(name, func(t *testing.T) {
			var found atomic.Int64
			var began time.Time
			handler := func(_ context.Context, job *outbox.Job[tiny]) error {
				if job.Tenant == numbered(2) {
					found.Store(int64(time.Since(began)))
				} else {
					time.Sleep(50 * time.Millisecond)
				}
				return nil
			}
			inMemory(t, 8, handler, Config{}, func(r rig) {
				r.addKeyed(numbered(2), 1, 0, key)
				r.capacity.Poke()
				r.sleep(time.Second)
				r.set(func() {
					r.take = func(c claimRequest) time.Duration {
						if c.front {
							return front
						}
						return time.Millisecond
					}
				})
				r.addKeyed(numbered(1), 4000, 0, key)
				r.capacity.Poke()
				r.sleep(10 * time.Second)
				began = time.Now()
				found.Store(0)
				r.addKeyed(numbered(2), 1, -2*time.Minute, key)
				r.sleep(8 * time.Second)
				if took := time.Duration(found.Load()); took == 0 || took > (scheduler.RestFactor+3)*front {
					t.Errorf("it was found after %s, want within %s", took, scheduler.RestFactor*front)
				}
			})
		})
	}
}

// Behind more dead entries than a claim can read, a new process starts new jobs at once, and those of a backlog when a
// search has found where they begin: it does not have to wait until the snapshot that keeps the entries is released.
// The same holds for jobs that come back to a place that the claims have passed.
func TestANewProcessBehindDeadEntriesStarts(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"plain": "", "keyed": "k"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inMemory(t, 8, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
				began := time.Now()
				dead := scheduler.Position{RunAt: began.Add(-time.Hour), ID: outbox.ID{0: 0xff}} // the last dead entry
				first := began.Add(-2 * time.Hour)                                               // the first one
				r.set(func() {
					r.reads = 10 * time.Second
					r.refuse = func(c claimRequest) error {
						for _, share := range c.shares {
							for _, cursor := range share.Cursors {
								if from := cursor.From(c.front, c.frontAt); from.Before(dead) && len(r.jobsFrom(cursor.Flow, key, from, dead)) < share.Quota {
									return context.DeadlineExceeded
								}
							}
						}
						return nil
					}
				})
				for n := range 2 {
					r.addKeyed(numbered(n), 5, 0, key)
					r.addKeyed(numbered(n), 100, -30*time.Minute, key)
				}
				r.capacity.Poke()
				if r.sleep(5 * time.Second); len(r.done) != 10 {
					t.Errorf("%d jobs have been done after five seconds, want the new ones", len(r.done))
				}
				if r.sleep(40 * time.Second); len(r.done) != 210 {
					t.Errorf("%d jobs have been done in the end, want all", len(r.done))
				}
				for n := range 2 {
					r.addKeyed(numbered(n), 1, time.Until(first.Add(time.Minute)), key)
					r.addKeyed(numbered(n), 1, 0, key)
				}
				r.capacity.Poke()
				if r.sleep(6 * time.Minute); len(r.done) != 214 {
					t.Errorf("%d jobs have been done, want also those that came back", len(r.done))
				}
				if n := r.searched; n < 2 || n > 6 {
					t.Errorf("%d searches in about seven minutes", n)
				}
				r.set(func() { r.refuse, r.reads = nil, 0 })
				r.sleep(6 * time.Minute) // a quick search shows that the dead entries are gone
				r.addKeyed(outbox.RootTenant, 1, time.Until(first), key)
				r.capacity.Poke()
				if r.sleep(time.Second); len(r.done) != 215 {
					t.Errorf("%d jobs have been done, want the one that a claim from the first entry finds", len(r.done))
				}
			})
		})
	}
}

// A search has no time left after what it has found. Nobody notifies the loop, and it claims these jobs all the same.
func TestWhatASearchHasFoundBeforeItWasCutOffStarts(t *testing.T) {
	t.Parallel()
	inMemory(t, 8, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		dead := scheduler.Position{RunAt: time.Now().Add(-time.Hour), ID: outbox.ID{0: 0xff}}
		r.set(func() {
			r.reads, r.cut = 10*time.Second, context.DeadlineExceeded
			r.refuse = func(c claimRequest) error {
				for _, share := range c.shares {
					for _, cursor := range share.Cursors {
						if cursor.From(c.front, c.frontAt).Before(dead) {
							return context.DeadlineExceeded
						}
					}
				}
				return nil
			}
		})
		r.add(outbox.RootTenant, 10, -30*time.Minute)
		r.capacity.Poke()
		r.sleep(time.Minute)
		if len(r.done) != 10 {
			t.Errorf("%d jobs have been done after %d searches, want all", len(r.done), r.searched)
		}
	})
}

// The database refuses every claim of one tenant's first job, as a user's trigger may: the jobs of the other tenants
// start all the same.
func TestARefusedClaimOfOneTenantLeavesTheOthersTheirTurn(t *testing.T) {
	t.Parallel()
	for i, key := range []string{"", "k", "", "k"} {
		workers := 1 + i/2*63
		t.Run(fmt.Sprintf("%d workers, key %q", workers, key), func(t *testing.T) {
			t.Parallel()
			inMemory(t, workers, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
				r.set(func() {
					r.refuse = func(c claimRequest) error {
						if slices.ContainsFunc(c.shares, func(s scheduler.Share) bool { return s.Tenant.ID == numbered(0) }) {
							return &pgconn.PgError{Code: "P0001", Message: "the trigger refuses this row"}
						}
						return nil
					}
				})
				for n := range 3 {
					r.addKeyed(numbered(n), 4, 0, key)
				}
				r.capacity.Poke()
				if r.sleep(5 * time.Minute); len(r.done) != 8 {
					t.Errorf("%d jobs have been done, want the eight of the other tenants", len(r.done))
				}
			})
		})
	}
}

// Promoted jobs of a tenant beyond its places in one claim are not forgotten: the next claim looks at them.
func TestOfferedJobsBeyondAQuotaAreClaimed(t *testing.T) {
	t.Parallel()
	inMemory(t, 64, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		const tenants, each = 20, 10
		for n := range tenants { // all have a cursor
			r.addKeyed(numbered(n), 1, 0, "k")
		}
		r.capacity.Poke()
		r.sleep(time.Second)
		var jobs []*outbox.Claimed
		for n := range tenants * each {
			jobs = append(jobs, newJob(tiny{}.Kind(), numbered(n%tenants), -time.Minute, fmt.Sprint("k", n)))
		}
		r.put(jobs...)
		for _, job := range jobs {
			r.keyed.Offer(job.Tenant, pgvalue.UUID(job.ID))
		}
		r.capacity.RoomMade()
		if r.sleep(time.Second); len(r.done) != tenants+tenants*each {
			t.Errorf("%d jobs have been done, want %d", len(r.done), tenants+tenants*each)
		}
	})
}

// A retry whose answer was lost is stored: the next try matches nothing, and the queue must look for the job, because
// it sleeps until the job that it knew of before is due.
func TestTheQueueLooksForARetryWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
		r.sleep(time.Second)
		job := newJob(tiny{}.Kind(), outbox.RootTenant, 200*time.Millisecond, "")
		r.put(job) // by the try whose answer was lost; nobody is notified
		claimed := newJob(job.Kind, job.Tenant, 0, "")
		claimed.ID = job.ID
		a := &attempt{job: claimed, capacity: r.capacity, route: r.routes[job.Kind], outcome: outcome.Outcome{Status: outbox.Retrying}}
		r.dispatcher.settler.reporter.report([]*attempt{a}, true)
		if r.sleep(time.Second); len(r.done) != 1 {
			t.Error("the job was not started again within a second")
		}
	})
}
