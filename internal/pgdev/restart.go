package pgdev

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Mode says how a server is shut down.
type Mode string

const (
	// Fast ends sessions, rolls their transactions back, and writes everything out.
	Fast Mode = "fast"
	// Immediate ends the server without clean-up, so that the next start recovers from the WAL as after a crash.
	Immediate Mode = "immediate"
)

// Restart shuts an owned server down and starts it again at the same URL. It
// returns when the server answers.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	sig, known := map[Mode]syscall.Signal{Fast: syscall.SIGINT, Immediate: syscall.SIGQUIT}[mode]
	if !known {
		return fmt.Errorf("restart mode is %q, want %q or %q", mode, Fast, Immediate)
	}
	return s.owned(func(c *cluster) error {
		if err := c.halt(sig); err != nil {
			return err
		}
		return c.start(ctx)
	})
}

// Kill9 kills an owned server's main process with SIGKILL and returns when it has ended. Its sessions notice that and
// end within moments.
func (s *Server) Kill9() error {
	return s.owned(func(c *cluster) error { return c.halt(syscall.SIGKILL) })
}

// StartAgain starts an owned server that Kill9 ended, at the same URL, and
// returns when it has recovered and answers. It leaves a running one alone.
func (s *Server) StartAgain(ctx context.Context) error {
	return s.owned(func(c *cluster) error {
		select {
		case <-c.process.done:
			return c.start(ctx)
		default:
			return nil
		}
	})
}

func (s *Server) owned(act func(*cluster) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return ErrNotOwned
	}
	if s.stopped {
		return errors.New("the server was stopped for good")
	}
	return act(s.cluster)
}
