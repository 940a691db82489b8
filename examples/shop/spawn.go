package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	startPatience = 20 * time.Second // until a worker is ready
	stopPatience  = 30 * time.Second // until a worker has drained
)

// worker is a child process: this program again, as `shop worker`.
type worker struct {
	name  string
	admin string // where it tells how it is
	cmd   *exec.Cmd
	log   lastWords
	done  chan struct{} // closed when it has ended
	err   error         // how; valid after done
	asked atomic.Bool   // to end, or killed
}

// team is the workers that run. It calls fail when one of them ends without
// having been asked to. Only the story's goroutine may use it.
type team struct {
	databaseURL string
	leaseTTL    time.Duration
	fail        func(error)
	workers     []*worker
}

// start starts a worker and returns when it is ready.
func (t *team) start(ctx context.Context, name string) (*worker, error) {
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{name: name, admin: admin, done: make(chan struct{})}
	w.cmd = exec.Command(program, "worker", "--child", "--name", name, "--admin", admin, "--lease-ttl",
		t.leaseTTL.String())
	// By PGAPPNAME its connections can be told apart in pg_stat_activity.
	w.cmd.Env = append(os.Environ(), "DATABASE_URL="+t.databaseURL, "PGAPPNAME="+w.appName())
	w.cmd.Stdout, w.cmd.Stderr = &w.log, &w.log
	if _, err := w.cmd.StdinPipe(); err != nil { // its end tells the child that we are dead
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", name, err)
	}
	t.workers = append(t.workers, w)
	go t.watch(w)
	return w, w.awaitReady(ctx)
}

func (w *worker) appName() string { return "shop-worker-" + w.name }

// watch waits for the worker's end.
func (t *team) watch(w *worker) {
	w.err = w.cmd.Wait()
	close(w.done)
	if !w.asked.Load() {
		t.fail(fmt.Errorf("worker %s ended by itself (%v)%s", w.name, w.cmd.ProcessState, w.log.String()))
	}
}

// awaitReady asks the worker's /readyz until it says yes.
func (w *worker) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.admin+"/readyz", nil)
		if err != nil {
			return err
		}
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-w.done:
			return fmt.Errorf("worker %s did not start (%v)%s", w.name, w.cmd.ProcessState, w.log.String())
		case <-ctx.Done():
			return fmt.Errorf("worker %s is not ready: %w%s", w.name, ctx.Err(), w.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends a worker as kill -9 does, and returns when it is gone.
func (t *team) kill(name string) (*worker, error) {
	i := slices.IndexFunc(t.workers, func(w *worker) bool { return w.name == name })
	if i < 0 {
		return nil, fmt.Errorf("kill worker %s: no such worker", name)
	}
	w := t.workers[i]
	t.workers = slices.Delete(t.workers, i, i+1)
	w.asked.Store(true)
	if err := w.cmd.Process.Kill(); err != nil {
		return nil, fmt.Errorf("kill worker %s: %w", name, err)
	}
	<-w.done
	return w, nil
}

// stop asks all workers to end, waits for them, and kills those that do not.
func (t *team) stop(patience time.Duration) error {
	for _, w := range t.workers {
		w.asked.Store(true)
		_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, w := range t.workers {
		select {
		case <-w.done:
		case <-ctx.Done():
			_ = w.cmd.Process.Kill()
			<-w.done
		}
		if w.err != nil {
			errs = append(errs, fmt.Errorf("worker %s did not stop in good order (%v)%s", w.name, w.cmd.ProcessState,
				w.log.String()))
		}
	}
	t.workers = nil
	return errors.Join(errs...)
}

// lastWords keeps the end of what a worker writes, to be shown if it fails.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

const maxLastWords = 4 << 10

// Write keeps the last maxLastWords bytes.
func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if n := len(l.text); n > maxLastWords {
		l.text = slices.Delete(l.text, 0, n-maxLastWords)
	}
	return len(p), nil
}

// String returns the text, fit to be appended to a sentence.
func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.TrimSpace(l.text)
	if len(text) == 0 {
		return ""
	}
	return ":\n    " + string(bytes.ReplaceAll(text, []byte("\n"), []byte("\n    ")))
}

// freeAddress returns an address that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
