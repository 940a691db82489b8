package listener

import (
	"context"
	"log/slog"
)

// state is what the listener last reported about itself.
type state int

const (
	stopped     state = iota
	hearing           // a canary came back: the only state in which Hearing is true
	deaf              // connected, but a canary got lost
	lost              // the connection ended without being asked to
	unreachable       // an attempt to connect failed
)

// news is how the log tells a change to each state.
var news = map[state]struct {
	level   slog.Level
	message string
}{
	stopped:     {slog.LevelInfo, "listener stopped"},
	hearing:     {slog.LevelInfo, "listener connected"},
	deaf:        {slog.LevelWarn, "listener is deaf"},
	lost:        {slog.LevelWarn, "listener lost its connection"},
	unreachable: {slog.LevelWarn, "listener could not connect"},
}

// enter makes s the state. A change is news; the same again is for debugging.
func (l *Listener) enter(ctx context.Context, s state, attrs ...slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()

	level := news[s].level
	if s == l.state {
		level = slog.LevelDebug
	}
	l.state = s
	attrs = append(attrs, slog.String("channel", l.channel))
	l.log.LogAttrs(ctx, level, news[s].message, attrs...)

	hears := s == hearing
	if l.hearing.Swap(hears) == hears {
		return
	}
	l.metrics.setHearing(hears)
	if l.onHearing != nil {
		l.onHearing(hears)
	}
}

// errAttr is the text of err, not err itself: pgx's errors carry the whole
// connection config, password included, for a handler that looks inside.
func errAttr(err error) slog.Attr {
	if err == nil {
		return slog.Attr{} // which slog ignores
	}
	return slog.String("err", err.Error())
}
