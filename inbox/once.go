package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// MaxMessageIDBytes is the length limit of a message id.
const MaxMessageIDBytes = 512

// Once records the message and reports whether this transaction is the first to handle it. Make the effect only if
// first is true, in the same transaction, and roll back if it fails: the message is then free for the next delivery.
//
// If first is false, a committed transaction has handled the message, or this one already has. Once waits for a
// concurrent transaction with the same message. At REPEATABLE READ and SERIALIZABLE, which cannot see the other's
// commit, Once returns a serialization failure (SQLSTATE 40001): roll back and try again.
//
// Messages are recorded per consumer, so that several consumers in one database can each handle the same message. A
// consumer is named like a kind: letters, digits and _ . : / -. A name or id that is not acceptable gets
// [*outbox.InvalidError]s, joined, before anything is sent.
//
// tx can be a pgx.Tx, or a database/sql transaction by [outbox.FromSQL]. A connection or a pool is accepted too, but
// commits the record alone: if the process then dies before the effect, the effect is never made.
func Once(ctx context.Context, tx outbox.DB, consumer, messageID string) (first bool, err error) {
	if err := errors.Join(validConsumer(consumer), validMessageID(messageID)); err != nil {
		return false, fmt.Errorf("receive message: %w", err)
	}
	n, err := sqlgen.New(tx).ReceiveMessage(ctx, consumer, messageID)
	if err != nil {
		return false, fmt.Errorf("receive message %q of %s: %w", messageID, consumer, explain(err))
	}
	return n == 1, nil
}

func validConsumer(s string) error {
	if fault := engine.NameFault(s); fault != "" {
		return invalid.Field("consumer", "%s", fault)
	}
	return nil
}

func validMessageID(s string) error { return validText("messageID", s, MaxMessageIDBytes) }

func validText(field, s string, most int) error {
	if s == "" {
		return invalid.Field(field, "is empty, want 1 to %d bytes", most)
	}
	if len(s) > most {
		return invalid.Field(field, "is %d bytes long, want at most %d; use a hash of it", len(s), most)
	}
	if i := strings.IndexByte(s, 0); i >= 0 {
		return invalid.Field(field, "has a NUL at byte %d, which Postgres text cannot hold", i)
	}
	if !utf8.ValidString(s) {
		return invalid.Field(field, "is not valid UTF-8; use its hexadecimal form")
	}
	return nil
}

// explain adds advice to an error about a missing table.
func explain(err error) error {
	if pgsession.State(err) == pgsession.UndefinedTable {
		return fmt.Errorf("%w (run posthaste migrate up, or inbox.DDL in a database that has no other part of Posthaste)", err)
	}
	return err
}
