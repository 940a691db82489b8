package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/nats"
)

// Relay runs the relay: it publishes to the sinks of VERIFY_SINKS, NAME=KIND separated by commas, until it gets a
// signal. The kinds are
//
//	ledger  accepts everything, and the ledger says what it has accepted
//	slow    the same, two seconds late
//	dead    accepts nothing
//	nats    the JetStream at VERIFY_BROKER, by subjects "events.KEY"
//
// With VERIFY_DIE=N it kills itself when a sink has accepted its Nth batch, before the cursor is stored. With
// VERIFY_TRACE=on it writes each of its statements to the ledger.
func Relay(ctx context.Context) (err error) {
	book, err := ledger.Open(os.Getenv("VERIFY_LEDGER"), os.Getenv("VERIFY_NAME"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	config, err := relayConfig(book)
	if err != nil {
		return err
	}
	pool, err := relayPool(book)
	if err != nil {
		return err
	}
	defer pool.Close()
	wake := listener.NewSignal()
	heard, err := listener.New(os.Getenv("OUTBOX_DATABASE_URL"), relay.Channel, wake,
		listener.Config{AppName: "verify-relay", Logger: config.Logger})
	if err != nil {
		return err
	}
	config.Wake, config.Listening = wake, heard.Listening
	r, err := relay.New(pool, config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var listening sync.WaitGroup
	listening.Go(func() { _ = heard.Run(ctx) })
	err = r.Run(ctx)
	stop()
	listening.Wait()
	pool.Close()
	if left := goleak.Find(); left != nil {
		err = errors.Join(err, fmt.Errorf("after the stop: %w", left))
	}
	return err
}

func relayConfig(book *ledger.Writer) (c relay.Config, err error) {
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	var errs []error
	c.LeaseTTL = duration("OUTBOX_LEASE_TTL", &errs)
	die, err := number("VERIFY_DIE")
	if errs = append(errs, err); errors.Join(errs...) != nil {
		return c, errors.Join(errs...)
	}
	for spec := range strings.SplitSeq(os.Getenv("VERIFY_SINKS"), ",") {
		name, kind, _ := strings.Cut(spec, "=")
		s := relay.SinkConfig{
			Name:   name,
			Routes: []relay.Route{{Topics: []string{"*"}, Destination: "events.{key|token}"}},
		}
		switch kind {
		case "ledger":
			s.Sink = &ledgerSink{book: book, name: name}
		case "slow":
			s.Sink = &ledgerSink{book: book, name: name, takes: 2 * time.Second}
		case "dead":
			s.Sink = &ledgerSink{book: book, name: name, dead: true}
		case "nats":
			if s.Sink, err = nats.Open(nats.Config{
				URLs: []string{os.Getenv("VERIFY_BROKER")},
				Name: "verify",
			}); err != nil {
				return c, err
			}
		default:
			return c, fmt.Errorf("VERIFY_SINKS: %q is no kind of sink", kind)
		}
		if die > 0 {
			s.Sink = &dying{s.Sink, die}
		}
		c.Sinks = append(c.Sinks, s)
	}
	return c, nil
}

// relayPool opens the pool from which the relay learns how to connect.
func relayPool(book *ledger.Writer) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("OUTBOX_DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = "verify-relay"
	if os.Getenv("VERIFY_TRACE") == "on" {
		config.ConnConfig.Tracer = statements{book}
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// ledgerSink is a broker whose store is a file: the ledger records what it has accepted, with the position as Epoch.
type ledgerSink struct {
	book  *ledger.Writer
	name  string
	takes time.Duration
	dead  bool
}

var errDead = errors.New("nobody is there")

// Publish accepts all messages or none.
func (s *ledgerSink) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := make([]error, len(batch))
	if s.dead {
		for i := range outcomes {
			outcomes[i] = &relay.UnavailableError{Code: relay.CodeUnavailable, Err: errDead}
		}
		return outcomes
	}
	_ = backoff.Sleep(ctx, s.takes)
	entries := make([]ledger.Entry, len(batch))
	for i, m := range batch {
		entries[i] = ledger.Entry{
			Event: ledger.Published, Key: string(m.Body), Do: s.name, Detail: m.ID,
			Epoch: m.Position,
		}
	}
	s.book.Write(entries...)
	return outcomes
}

// Probe returns an error if the sink is dead.
func (s *ledgerSink) Probe(context.Context) error {
	if s.dead {
		return errDead
	}
	return nil
}

// Check returns no findings.
func (s *ledgerSink) Check(context.Context, []string) ([]relay.Finding, error) { return nil, nil }

// Close does nothing.
func (s *ledgerSink) Close() error { return nil }

// dying is a sink that kills its process between the broker's acknowledgement and the store of the cursor.
type dying struct {
	relay.Sink
	left int // batches
}

// Publish kills the process after the last batch.
func (d *dying) Publish(ctx context.Context, batch []relay.Message) []error {
	outcomes := d.Sink.Publish(ctx, batch)
	if d.left--; d.left <= 0 && len(outcomes) > 0 && outcomes[0] == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return outcomes
}

// statements writes every statement to the ledger.
type statements struct{ book *ledger.Writer }

// TraceQueryStart records a query.
func (t statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.book.Write(ledger.Entry{Event: ledger.Called, Do: statement(data.SQL)})
	return ctx
}

// TraceQueryEnd does nothing: TraceQueryStart has recorded the query.
func (t statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart does nothing: it does not know the queries yet.
func (t statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery records a query of a batch.
func (t statements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	t.book.Write(ledger.Entry{Event: ledger.Called, Do: statement(data.SQL)})
}

// TraceBatchEnd does nothing: TraceBatchQuery has recorded the queries.
func (t statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
