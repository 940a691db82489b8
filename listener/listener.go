package listener

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgxlisten"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// A Listener turns the notifications of one channel into wake-ups. Make one with New. Its methods are safe for
// concurrent use.
type Listener struct {
	channel     string
	wake        Signal
	alsoWake    []Signal
	byPayload   map[string]Signal
	onListening func(bool)

	connect  connector
	canary   string // a channel of this listener alone
	senders  []Sender
	interval time.Duration
	patience time.Duration

	running atomic.Bool
	hearing atomic.Bool
	mu      sync.Mutex // serializes changes of state, their logs and OnListening
	state   state

	log     *slog.Logger
	metrics *metrics
}

// New returns a listener that sets wake for every notification on channel, and whenever it may have missed one. It
// connects to connString, or if that is "", as cfg.Pool does. The connection must lead to the database itself: a pooler
// that shares server connections between clients swallows LISTEN. channel is matched exactly, including case. The error
// names every mistake, and never quotes connString.
func New(connString, channel string, wake Signal, cfg Config) (*Listener, error) {
	connect, err := cfg.validate(connString, channel, wake)
	if err != nil {
		return nil, fmt.Errorf("configure listener: %w", err)
	}
	var senders []Sender
	if cfg.Canary != nil {
		senders = append(senders, cfg.Canary)
	}
	interval := cmp.Or(cfg.CanaryInterval, defaultCanaryInterval)
	return &Listener{
		channel:     channel,
		wake:        wake,
		alsoWake:    cfg.AlsoWake,
		byPayload:   cfg.ByPayload,
		onListening: cfg.OnListening,
		connect:     connect,
		canary:      "outbox_canary_" + strings.ToLower(rand.Text()),
		senders:     append(senders, ownConnection{connect}),
		interval:    interval,
		patience:    cmp.Or(cfg.patience, min(interval, maxCanaryPatience)),
		log:         cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		metrics:     newMetrics(cfg.Registerer, channel),
	}, nil
}

// Listening reports whether the listener is known to receive notifications: it is connected, and its last canary came
// back. While it is false, rely on polling.
func (l *Listener) Listening() bool { return l.hearing.Load() }

// Run listens until ctx is done, and then returns nil. It survives any failure of the connection and reconnects for as
// long as that takes. It does not return before everything that it started has ended. It may run again, but not twice
// at a time.
func (l *Listener) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("listener is running already")
	}
	defer l.running.Store(false)

	r := &run{Listener: l, retry: backoff.Backoff{Max: maxRetryWait}}
	lib := pgxlisten.Listener{
		Connect:  r.connect,
		LogError: r.note,
		// connect waits on its own; this delay only keeps a mistake there from spinning.
		ReconnectDelay: time.Millisecond,
	}
	lib.Handle(l.channel, handler{listening: r.listening, heard: r.notified})
	lib.Handle(l.canary, handler{listening: r.listening, heard: r.canaryReturned})

	err := lib.Listen(ctx)
	r.endSession(ctx)
	l.enter(ctx, stopped)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("listen on %s: %w", l.channel, err)
}
