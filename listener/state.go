package listener

import (
	"context"
	"log/slog"
)

// state is the state that the listener last reported.
type state int

const (
	stopped     state = iota
	hearing           // a canary came back: the only state in which Listening is true
	deaf              // connected, but a canary was lost
	lost              // the connection ended unasked
	unreachable       // an attempt to connect failed
)

// stateLogs has the log line for a change to each state.
var stateLogs = map[state]struct {
	level   slog.Level
	message string
}{
	stopped:     {slog.LevelInfo, "listener stopped"},
	hearing:     {slog.LevelInfo, "listener connected"},
	deaf:        {slog.LevelWarn, "listener receives no notifications"},
	lost:        {slog.LevelWarn, "listener lost its connection"},
	unreachable: {slog.LevelWarn, "listener could not connect"},
}

// enter makes s the current state. It logs a change at the level of stateLogs, and a repetition at debug level.
func (l *Listener) enter(ctx context.Context, s state, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()

	level := stateLogs[s].level
	if s == l.state {
		level = slog.LevelDebug
	}
	l.state = s
	attrs = append(attrs, slog.String("channel", l.channel))
	l.log.LogAttrs(ctx, level, stateLogs[s].message, attrs...)

	hears := s == hearing
	if l.hearing.Swap(hears) == hears {
		return
	}
	l.metrics.setHearing(hears)
	if l.onListening != nil {
		l.onListening(hears)
	}
}

// errAttr returns the text of err rather than err itself: pgx's errors contain the whole connection config, password
// included, which a log handler could expose.
func errAttr(err error) slog.Attr {
	if err == nil {
		return slog.Attr{} // slog ignores it
	}
	return slog.String("err", err.Error())
}
