// Package child runs the processes of a fault test: real ones, in process groups
// of their own, that can be killed and stopped, and that do not outlive us.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is a program under test.
type Process struct {
	Name string
	Log  string // path of what it prints

	cmd    *exec.Cmd
	since  time.Time
	ended  chan struct{} // closed when it is gone
	at     time.Time     // when it was; valid after ended
	mayEnd atomic.Bool   // that it may end
}

// Start starts a program. It gets of our own environment only what cannot
// configure it, and then env. Unless it is nil, prepare is called with the number
// of the process before that has run its first instruction.
func Start(name, log, program string, env []string, prepare func(pid int) error, args ...string) (*Process, error) {
	p := &Process{
		Name: name, Log: log, cmd: exec.Command(program, args...), since: time.Now(),
		ended: make(chan struct{}),
	}
	p.cmd.Env = Environment(env)
	if err := p.launch(prepare); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Environment is env after what our own environment has that cannot configure a
// program of ours or its connections.
func Environment(env []string) (all []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OUTBOX_") && !strings.HasPrefix(v, "DATABASE_URL") &&
			!strings.HasPrefix(v, "VERIFY_") {
			all = append(all, v)
		}
	}
	return append(all, env...)
}

// launch keeps the thread that starts the process for as long as it lives, so
// that it dies with us and not before.
func (p *Process) launch(prepare func(pid int) error) error {
	log, err := os.Create(p.Log)
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us
	dieWithParent(p.cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := p.begin(prepare)
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // its status is looked at by those whom it concerns
			p.at = time.Now()
			close(p.ended)
		}
	}()
	return <-started
}

// begin starts the process, and has it stand at its exec while it is prepared.
func (p *Process) begin(prepare func(pid int) error) error {
	if prepare == nil {
		return p.cmd.Start()
	}
	standAtExec(p.cmd.SysProcAttr)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	err := awaitExec(p.PID())
	if err == nil {
		err = errors.Join(prepare(p.PID()), goOn(p.PID()))
	}
	if err != nil {
		_ = p.cmd.Process.Kill() // it has done nothing yet
		_ = p.cmd.Wait()
	}
	return err
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal that does not end the process.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %s to %s: %w", sig, p.Name, err)
	}
	return nil
}

// Stop sends SIGSTOP and returns when every thread of the process stands still: a busy machine lets them run on for a
// while, and answer what is asked of them.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if still, err := standsStill(p.PID()); still || err != nil {
			return err
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("%s does not stop", p.Name)
		}
	}
}

// Kill9 returns when the process is gone.
func (p *Process) Kill9() error {
	p.mayEnd.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-p.ended
	return nil
}

// Begun waits until the process has printed something, or has ended. One that has
// printed nothing for ten seconds is taken for one that does not.
func (p *Process) Begun(ctx context.Context) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if log, err := os.Stat(p.Log); err != nil || log.Size() > 0 || time.Since(p.since) > 10*time.Second {
			return err
		}
		select {
		case <-p.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
	}
}

// Terminate sends SIGTERM and does not wait.
func (p *Process) Terminate() error {
	p.mayEnd.Store(true)
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// MayEnd says that the process ends by itself.
func (p *Process) MayEnd() { p.mayEnd.Store(true) }

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// EndedAt is when the process ended; zero if it still runs.
func (p *Process) EndedAt() time.Time {
	if p.Alive() {
		return time.Time{}
	}
	return p.at
}

// ExitCode is its status once it has ended, -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Alive reports whether the process is there, stopped or not.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Fate is what happened to the process that must not: it ended by itself, or its
// log tells of a data race or a crash. It is empty if all is well.
func (p *Process) Fate() string {
	if !p.Alive() && !p.mayEnd.Load() {
		return fmt.Sprintf("%s ended by itself: %s", p.Name, p.cmd.ProcessState)
	}
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	for _, bad := range []string{"WARNING: DATA RACE", "fatal error:", "goroutine 1 ["} {
		if strings.Contains(string(content), bad) {
			return fmt.Sprintf("the log of %s has %q", p.Name, bad)
		}
	}
	return ""
}
