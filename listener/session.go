package listener

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// askInterval is the pause between two questions to the peer, and the time that it has to answer one.
const askInterval = 2500 * time.Millisecond

// session is one connection that listens, with the canary that watches it.
type session struct {
	*Listener
	line    *line
	started time.Time

	setup    *time.Timer // cuts the line if LISTEN does not succeed in time
	channels int         // how many are listened to

	stop  context.CancelFunc // ends the canary; nil before it starts
	tasks sync.WaitGroup     // the canary
	back  chan time.Time     // receives when a canary comes back; one slot
	heard atomic.Bool        // a notification other than a canary arrived

	// These belong to the canary; others may read them after its end.
	proven bool
	deaf   bool
}

func newSession(l *Listener, ln *line) *session {
	return &session{
		Listener: l,
		line:     ln,
		started:  time.Now(),
		// pgxlisten sends LISTEN without a deadline, so this timer limits it.
		setup: time.AfterFunc(connectTimeout, ln.cut),
		back:  make(chan time.Time, 1),
	}
}

// listening counts the channels and reports whether all are now listened to. Then the canary starts, and sends the
// first one at once: a pooler that swallows LISTEN is detected within seconds.
func (s *session) listening(ctx context.Context) bool {
	if s.channels++; s.channels < 2 {
		return false
	}
	s.setup.Stop()
	ctx, s.stop = context.WithCancel(ctx)
	s.tasks.Go(func() { s.watch(ctx) })
	return true
}

func (s *session) end() {
	s.setup.Stop()
	if s.stop != nil {
		s.stop()
	}
	s.tasks.Wait()
	s.line.hangUp()
}

// returned notes that a canary has come back; it is called then.
func (s *session) returned() {
	select {
	case s.back <- time.Now():
	default:
	}
}

// watch sends canaries until ctx is done or the session turns out to be deaf.
func (s *session) watch(ctx context.Context) {
	for {
		err := s.probe(ctx)
		if err == nil {
			if s.proven = true; !s.Listening() {
				s.enter(ctx, hearing)
			}
			err = s.rest(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// Closing the socket wakes pgxlisten, even if the peer is long gone.
			s.deaf = true
			s.enter(ctx, deaf, errAttr(err))
			s.line.cut()
			return
		}
	}
}

// rest waits until the next canary is due. A canary costs a transaction; asking whether the peer is there at all costs
// nothing, and so happens more often.
func (s *session) rest(ctx context.Context) error {
	due := time.NewTimer(s.interval)
	defer due.Stop()
	for {
		asked := time.Now()
		s.line.ask()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			return nil
		case <-time.After(askInterval):
		}
		if !s.line.heardSince(asked) {
			return errors.New("the server does not answer")
		}
	}
}

// probe sends one canary and waits for it. It returns nil if the session is
// known to hear.
func (s *session) probe(ctx context.Context) error {
	heardBefore := s.heard.Swap(false)
	select {
	case <-s.back: // a late canary of the previous round
	default:
	}

	start := time.Now()
	sent, sendErr := s.send(ctx)
	select {
	case at := <-s.back:
		s.metrics.canarySeconds.Observe(at.Sub(start).Seconds())
		if sendErr != nil {
			s.metrics.canaryFailures.Inc()
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.patience):
	}

	s.metrics.canaryFailures.Inc()
	// In a storm of notifications the canary may be late, but a listener that receives them hears. And if the canary
	// could not be sent, its absence proves nothing.
	if s.heard.Load() || !sent && heardBefore {
		return nil
	}
	return errors.Join(errors.New("no canary came back"), sendErr)
}

// send sends a canary over the first path that works. The error describes the paths that failed.
func (s *session) send(ctx context.Context) (sent bool, err error) {
	for _, sender := range s.senders {
		sendCtx, cancel := context.WithTimeout(ctx, s.patience)
		// Without arguments, pgx uses the simple protocol, which every pooler accepts.
		_, sendErr := sender.Exec(sendCtx, "NOTIFY "+s.canary)
		cancel()
		if sendErr == nil {
			return true, err
		}
		if ctx.Err() != nil {
			return false, sendErr
		}
		s.log.LogAttrs(ctx, slog.LevelDebug, "canary could not be sent", errAttr(sendErr),
			slog.String("channel", s.channel))
		err = errors.Join(err, sendErr)
	}
	return false, err
}
