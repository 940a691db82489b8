// Package child runs the processes of a fault test: real ones, each in a process group of its own, that can be killed
// and stopped, and that do not outlive their parent.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is a program under test.
type Process struct {
	Name string
	Log  string // path of the file with its output

	cmd    *exec.Cmd
	since  time.Time
	ended  chan struct{} // closed when the process has ended
	at     time.Time     // when it ended; valid once ended is closed
	mayEnd atomic.Bool   // that it may end without being an error
}

// Start starts a program. The program gets env, and of our own environment only what cannot configure it. If prepare is
// not nil, Start calls it with the number of the process before the process runs its first instruction.
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

// Environment returns env, preceded by those variables of our own environment that cannot configure a program of ours
// or its connections.
func Environment(env []string) (all []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OUTBOX_") && !strings.HasPrefix(v, "DATABASE_URL") &&
			!strings.HasPrefix(v, "VERIFY_") {
			all = append(all, v)
		}
	}
	return append(all, env...)
}

// launch keeps the thread that starts the process locked for as long as the process lives, so that the process dies
// with us and not before.
func (p *Process) launch(prepare func(pid int) error) error {
	log, err := os.Create(p.Log)
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches only us
	dieWithParent(p.cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := p.begin(prepare)
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // callers read the exit status
			p.at = time.Now()
			close(p.ended)
		}
	}()
	return <-started
}

// begin starts the process, and stops it at its exec while prepare runs.
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

// PID returns the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal that does not end the process.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %s to %s: %w", sig, p.Name, err)
	}
	return nil
}

// Stop sends SIGSTOP and returns when every thread of the process has stopped: on a busy machine, threads run on for a
// while, and still respond.
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

// Kill9 sends SIGKILL and returns when the process has ended. It returns an error if the process had ended before,
// though nothing had allowed it to.
func (p *Process) Kill9() error {
	if !p.Alive() && !p.mayEnd.Load() {
		return fmt.Errorf("kill %s: it had ended by itself: %s", p.Name, p.cmd.ProcessState)
	}
	p.mayEnd.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-p.ended
	return nil
}

// Begun waits until the process has printed something, or has ended. After ten seconds it assumes that the process
// prints nothing.
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

// MayEnd marks the process as one that may end by itself.
func (p *Process) MayEnd() { p.mayEnd.Store(true) }

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// EndedAt returns when the process ended, or zero if it still runs.
func (p *Process) EndedAt() time.Time {
	if p.Alive() {
		return time.Time{}
	}
	return p.at
}

// ExitCode waits until the process has ended and returns its exit status, or -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Killed waits until the process has ended, and reports whether SIGKILL ended it.
func (p *Process) Killed() bool {
	<-p.ended
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Alive reports whether the process exists, stopped or not.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// crash matches what the runtime prints of a crash, or of a data race, in whatever goroutine.
var crash = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: |goroutine \d+ \[).*$`)

// Fate describes what must not happen to the process and did: it ended by itself, or its log shows a data race or a
// crash. It returns "" if there is nothing wrong.
func (p *Process) Fate() string {
	if !p.Alive() && !p.mayEnd.Load() {
		return fmt.Sprintf("%s ended by itself: %s", p.Name, p.cmd.ProcessState)
	}
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	if line := crash.Find(content); line != nil {
		return fmt.Sprintf("the log of %s has %q", p.Name, line)
	}
	return ""
}
