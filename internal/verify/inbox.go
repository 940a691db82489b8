package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
)

// redeliveries runs row F1.
func redeliveries(ctx context.Context, r *Run) error {
	const times, clients = 10, 32
	messages, kills := r.Size(2_000, 10_000), r.Size(8, 60)
	if _, err := r.DB.Exec(ctx, probe.InboxSchema); err != nil {
		return err
	}
	consume := func() (*child.Process, error) {
		return r.start("consumer", "verify-consumer", []string{
			fmt.Sprint("VERIFY_JOBS=", messages), fmt.Sprint("VERIFY_TIMES=", times),
			fmt.Sprint("VERIFY_CLIENTS=", clients), fmt.Sprint("VERIFY_POOL=", clients),
		}, nil)
	}
	consumer, err := consume()
	if err != nil {
		return err
	}
	consumer.MayEnd()
	dice := fault.Random(r.Seed, "kill")
	for r.Faults.Count("kill -9 consumer") < kills {
		if err := backoff.Sleep(ctx, time.Duration(200+dice.IntN(300))*time.Millisecond); err != nil {
			return err
		}
		if err := r.awaitTransactions(ctx, consumer); err != nil {
			return err
		}
		if consumer.Alive() {
			r.Faults.Begin("kill -9 consumer", consumer.Name)()
			if err := consumer.Kill9(); err != nil {
				return err
			}
		} else if consumer.ExitCode() == 0 { // all was consumed before there were enough faults
			messages += messages / 4
		} else {
			return fmt.Errorf("the consumer ended with status %d", consumer.ExitCode())
		}
		if consumer, err = consume(); err != nil {
			return err
		}
		consumer.MayEnd()
		if err := r.cutSessions(ctx, consumer, dice); err != nil {
			return err
		}
	}
	select {
	case <-consumer.Ended():
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("the consumer is not done 2 minutes after the last fault")
	}
	if consumer.ExitCode() != 0 {
		return fmt.Errorf("the consumer ended with status %d", consumer.ExitCode())
	}
	return r.checkReceived(ctx, messages, times)
}

// cutSessions terminates three of a consumer's sessions in the middle of their transactions, one after the other. The
// dice choose which.
func (r *Run) cutSessions(ctx context.Context, consumer *child.Process, dice *rand.Rand) error {
	for range 3 {
		if err := backoff.Sleep(ctx, time.Duration(40+dice.IntN(60))*time.Millisecond); err != nil {
			return err
		}
		// A process takes a while to connect, the longer the slower the machine is.
		err := r.Await(ctx, patience, "a transaction of "+consumer.Name, func(ctx context.Context) (bool, error) {
			hit, err := r.Number(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity WHERE datname = current_database()
					AND application_name = 'verify-consumer' AND state = 'idle in transaction'
				ORDER BY hashint8extended(pid, $1) LIMIT 1) AS chosen`, dice.Int64())
			if err == nil && hit > 0 {
				r.Faults.Begin("pg_terminate_backend", "")()
			}
			return hit > 0 || !consumer.Alive(), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitTransactions waits until a consumer has several deliveries under way: killing it earlier would break none.
func (r *Run) awaitTransactions(ctx context.Context, p *child.Process) error {
	return r.Await(ctx, patience, p.Name+" to have transactions under way", func(ctx context.Context) (bool, error) {
		n, err := r.Number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'verify-consumer' AND state IN ('active', 'idle in transaction')`)
		return n >= 4 || !p.Alive(), err
	})
}

// checkReceived compares the ledger with the effects.
func (r *Run) checkReceived(ctx context.Context, messages, times int) error {
	acked, firsts := map[string]int{}, 0
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		switch e.Event {
		case ledger.Attempted:
			r.Count("deliveries", 1)
		case ledger.Acked:
			if acked[e.Key]++; e.Do == "first" {
				firsts++
			}
		case ledger.Unknown:
			r.Count("deliveries with unknown outcome", 1)
		case ledger.Failed:
			r.Count("deliveries that failed", 1)
		}
	}
	var less []string
	for n := range messages {
		if message := fmt.Sprintf("message-%d", n); acked[message] < times {
			less = append(less, fmt.Sprintf("%s: %d times", message, acked[message]))
		}
	}
	r.None("messages acknowledged fewer times than delivered", less)
	for what, sql := range map[string]string{
		"messages with a partial effect":          `SELECT message FROM received GROUP BY message HAVING count(DISTINCT part) <> 2`,
		"messages whose effect was applied twice": `SELECT message FROM received GROUP BY message HAVING count(*) > 2`,
		"inbox rows without an effect": `SELECT message_id FROM outbox.inbox
			WHERE NOT EXISTS (SELECT FROM received WHERE message = message_id)`,
	} {
		bad, err := r.Texts(ctx, sql)
		if err != nil {
			return err
		}
		r.None(what, bad)
	}
	effects, err := r.Number(ctx, `SELECT count(DISTINCT message) FROM received`)
	if err != nil {
		return err
	}
	r.Count("messages with an effect", effects)
	r.Expect("messages with an effect", float64(effects), "=", float64(messages))
	r.Expect("acknowledged deliveries reported as the first of their message", float64(firsts), "<=", float64(messages))
	r.Expect("deliveries interrupted inside their transaction", float64(r.record.Counts["deliveries"]-messages*times),
		">=", 50)
	r.atLeast(r.Size(4, 30), "kill -9 consumer")
	r.atLeast(r.Size(4, 50), "pg_terminate_backend")
	r.None(noCrashes, r.fates())
	return nil
}
