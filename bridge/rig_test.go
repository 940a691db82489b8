package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(processVariable); spec != "" {
		os.Exit(process(spec))
	}
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// source is a broker in memory: what is not acknowledged comes again.
type source struct {
	mu       sync.Mutex
	messages []bridge.Message
	fetched  int // of messages
	acked    int // of messages
	fetches  int
	released int // how many times
	failure  error
	onFetch  func()
	onAck    func()
	arrived  chan struct{}
}

func newSource(messages ...bridge.Message) *source {
	return &source{messages: messages, arrived: make(chan struct{}, 1)}
}

func (s *source) add(messages ...bridge.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, messages...)
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// fail has Fetch fail from now on.
func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *source) Fetch(ctx context.Context, most int) ([]bridge.Message, error) {
	for {
		s.mu.Lock()
		s.fetches++
		batch := s.messages[s.fetched:min(len(s.messages), s.fetched+most)]
		s.fetched += len(batch)
		failure := s.failure
		s.mu.Unlock()
		if failure != nil {
			return nil, failure
		}
		if len(batch) > 0 {
			if s.onFetch != nil {
				s.onFetch()
			}
			return batch, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-s.arrived:
		}
	}
}

func (s *source) Ack(context.Context) error {
	if s.onAck != nil {
		s.onAck()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = s.fetched
	return nil
}

func (s *source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched = s.acked
	s.released++
}

func (s *source) releases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.released
}

func (s *source) Close() error { return nil }

func (s *source) Lag() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.messages) - s.fetched)
}

func (s *source) counts() (fetches, acked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches, s.acked
}

// output is a log that tests read while it is written.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start runs a bridge until the test ends or stop is called.
func start(t *testing.T, db *pgxpool.Pool, config bridge.BridgeConfig) (log *output, stop func()) {
	t.Helper()
	log = &output{}
	if config.Name == "" {
		config.Name = "orders"
	}
	if config.Kind == "" {
		config.Kind = "order.received"
	}
	b, err := bridge.New(db, bridge.Config{Bridges: []bridge.BridgeConfig{config}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Log(log.String())
			}
		})
	}
	t.Cleanup(stop)
	return log, stop
}

func await(t *testing.T, what string, within time.Duration, is func() bool) {
	t.Helper()
	within = max(within, time.Minute) // a busy machine
	for range pgtest.Looks(within) {
		if is() {
			return
		}
	}
	t.Fatalf("not within %s: %s", within, what)
}

func ask[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// wantNoOwner fails the test if the next process would wait for the lease of the one that has stopped.
func wantNoOwner(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.inbox_positions WHERE lease_expires_at IS NOT NULL`); n != 0 {
		t.Error("a process that stops keeps the bridge until its lease lapses")
	}
}

func jobs(t *testing.T, db *pgxpool.Pool) int {
	t.Helper()
	return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`)
}
