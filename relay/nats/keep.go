package nats

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
)

const (
	// flushTimeout is how long an abandoned connection has to send what was published on it.
	flushTimeout = 2 * time.Second

	// steadyAfter is how long a connection must last for the next one to be made soon after it has ended.
	steadyAfter = 10 * time.Second
)

// KeepConnected connects and calls use, and does so again whenever the connection has ended or use has returned, until
// ctx ends. The context of use ends with ctx or with the connection, whichever ends first. Whatever use has published
// by the time it returns is flushed, unless the connection is broken. Each connection reads the files of config again.
// KeepConnected logs an unavailable server at once and then every ten seconds.
//
// It is for traffic that needs no order and stores nothing: questions, answers, heartbeats. A [Sink] has its own
// connections.
func KeepConnected(ctx context.Context, config Config, log *slog.Logger, use func(context.Context, *nats.Conn) error) {
	k := keeper{config: config, log: log, use: use}
	for retry := (backoff.Backoff{
		Min: 500 * time.Millisecond,
		Max: 10 * time.Second,
	}); ctx.Err() == nil; _ = retry.Wait(ctx) {
		began := time.Now()
		err := k.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			k.say(slog.LevelWarn, "no connection to NATS", slog.String("err", err.Error()))
		}
		if time.Since(began) > steadyAfter {
			retry.Reset()
		}
	}
}

type keeper struct {
	config     Config
	log        *slog.Logger
	use        func(context.Context, *nats.Conn) error
	complaints outage.Complaints
}

// say logs a message once in ten seconds.
func (k *keeper) say(level slog.Level, message string, what slog.Attr) {
	if missed, due := k.complaints.Due(message, time.Now()); due {
		k.log.LogAttrs(context.Background(), level, message, what, slog.Int("since_last_line", missed))
	}
}

// once connects, uses the connection until it ends, and returns why it ended.
func (k *keeper) once(ctx context.Context) error {
	sockets := &sockets{}
	options, err := k.config.options(ctx, sockets)
	if err != nil {
		return err
	}
	used, end := context.WithCancelCause(ctx)
	defer end(nil)
	options = append(options,
		nats.ClosedHandler(func(nc *nats.Conn) {
			end(errors.Join(errors.New("the connection ended"), nc.LastError()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			k.say(slog.LevelWarn, "NATS reported an error", slog.String("err", err.Error()))
		}))
	nc, err := nats.Connect(strings.Join(k.config.URLs, ","), options...)
	if err != nil {
		return err
	}
	defer nc.Close()
	defer sockets.close() // runs first, or Close would wait for a write that nobody reads
	k.say(slog.LevelInfo, "connected to NATS", slog.String("server", nc.ConnectedUrlRedacted()))
	err = k.use(used, nc)
	_ = nc.FlushTimeout(flushTimeout)
	if err == nil {
		err = context.Cause(used)
	}
	return err
}
