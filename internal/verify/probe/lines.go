package probe

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// lines is which keys a producer's jobs have, order n the key n modulo keys. Jobs
// of every other key may run three at a time, those of the rest one at a time.
type lines struct {
	keys    int    // VERIFY_KEYS; 0 is jobs without keys
	ordered bool   // VERIFY_ORDERED=on: all jobs of a key one after the other, and some fail at first
	burst   int    // VERIFY_BURST: so many orders on end have a new key of their own instead; 0 is none
	owner   string // of such keys
}

func readLines(errs *[]error) (l lines) {
	var err error
	l.keys, err = number("VERIFY_KEYS")
	*errs = append(*errs, err)
	l.burst, err = number("VERIFY_BURST")
	*errs = append(*errs, err)
	l.ordered, l.owner = os.Getenv("VERIFY_ORDERED") == "on", os.Getenv("VERIFY_NAME")
	if l.ordered && l.keys == 0 {
		*errs = append(*errs, errors.New("VERIFY_ORDERED has no VERIFY_KEYS"))
	}
	return l
}

// join gives a job its key. The number of an ordered one is drawn under a lock that
// is held until the transaction has committed, so that numbers of a key rise in the
// order of the commits. A transaction that is repeated draws another: numbers may
// be left out.
func (l lines) join(ctx context.Context, tx pgx.Tx, task *Task, options *outbox.Options) error {
	var line int
	switch {
	case l.burst > 0:
		line = task.N / l.burst
		options.Key.Name = fmt.Sprintf("%s-%d", l.owner, line)
	case l.keys > 0:
		line = task.N % l.keys
		options.Key.Name = fmt.Sprint("key-", line)
	default:
		return nil
	}
	if !l.ordered {
		task.Limit = 1 + line%2*2
		options.Key.MaxActive = task.Limit
		return nil
	}
	options.Key.Ordered = true
	if err := tx.QueryRow(ctx, `INSERT INTO lines AS line (key, last) VALUES ($1, 1)
		ON CONFLICT (key) DO UPDATE SET last = line.last + 1 RETURNING last`, options.Key.Name).Scan(&task.Seq); err != nil {
		return err
	}
	if task.Seq%8 == 4 { // not the last one of a short line, which holds up nobody
		task.Fails = 1
	}
	return nil
}
