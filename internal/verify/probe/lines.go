package probe

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// lines says which keys a producer's jobs have: order n has the key n modulo keys. Jobs of every other key may run
// three at a time, those of the rest one at a time.
type lines struct {
	keys    int    // VERIFY_KEYS; 0 means no keys
	ordered bool   // VERIFY_ORDERED=on: the jobs of a key are ordered, and some fail at first
	burst   int    // VERIFY_BURST: every so many successive orders share a new key instead; 0 means none
	owner   string // prefix of the names of such keys
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

// join gives a job its key. It draws the number of an ordered job under a lock that is held until the transaction has
// committed, so that the numbers of a key rise in the order of the commits. A retried transaction draws another number,
// so numbers may be skipped.
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
	if task.Seq%8 == 4 { // never the last job of a short line, which would delay no other
		task.Fails = 1
	}
	return nil
}
