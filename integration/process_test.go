package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a program under test.
type process struct {
	s     *story
	name  string
	cmd   *exec.Cmd
	log   string        // path
	ended chan struct{} // closed when it is gone
	told  atomic.Bool   // that it may end
	admin string        // address; see readyz
}

// worker starts a worker. Its environment begins with what makes stories short;
// what env says comes after it and counts.
func (s *story) worker(name string, env ...string) *process {
	s.Helper()
	return s.start(programs.worker, name, env, "verify-worker")
}

// serve starts the real binary.
func (s *story) serve(name string, env ...string) *process {
	s.Helper()
	return s.start(programs.posthaste, name, env, "serve")
}

func (s *story) start(program, name string, env []string, args ...string) *process {
	s.Helper()
	all := append([]string{
		"OUTBOX_DATABASE_URL=" + s.url, "OUTBOX_ADMIN_ADDR=127.0.0.1:0", "OUTBOX_LOG_FORMAT=json", "OUTBOX_POLL_INTERVAL=5m",
		"VERIFY_LEDGER=" + s.ledger.Path(), "VERIFY_NAME=" + name,
	}, env...)
	p := &process{s: s, name: name, ended: make(chan struct{})}
	p.log = filepath.Join(s.ArtifactDir(), fmt.Sprintf("%02d-%s.log", len(s.procs), name))
	p.cmd = command(background, program, all, args...)
	if err := p.launch(); err != nil {
		s.Fatalf("start %s: %v", name, err)
	}
	s.procs = append(s.procs, p)
	return p
}

// command has nothing of our own environment that could configure it.
func command(ctx context.Context, program string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OUTBOX_") && !strings.HasPrefix(v, "DATABASE_URL") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// launch keeps the thread that starts the process for as long as it lives, so
// that it dies with us and not before.
func (p *process) launch() error {
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us
	dieWithTest(p.cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // its status is looked at by those whom it concerns
			close(p.ended)
		}
	}()
	return <-started
}

// signal sends a signal that does not end the process.
func (p *process) signal(sig syscall.Signal) {
	p.s.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.s.Fatalf("send %s to %s: %v", sig, p.name, err)
	}
}

// kill9 returns when the process is gone.
func (p *process) kill9() {
	p.s.Helper()
	p.told.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.s.Fatalf("kill %s: %v", p.name, err)
	}
	<-p.ended
}

// terminate sends SIGTERM.
func (p *process) terminate() {
	p.s.Helper()
	p.told.Store(true)
	p.signal(syscall.SIGTERM)
}

// exit waits for the end of a process that was told to, and returns its status.
func (p *process) exit(within time.Duration) int {
	p.s.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		p.s.Fatalf("%s is still there %s after it was told to stop", p.name, within)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// close ends a process at the end of its story.
func (p *process) close() {
	if !p.told.Load() && !p.alive() {
		p.s.Errorf("%s ended by itself: %s", p.name, p.cmd.ProcessState)
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// examine looks for what no process may do.
func (p *process) examine() {
	for _, bad := range []string{"WARNING: DATA RACE", "fatal error:", "goroutine 1 ["} {
		if strings.Contains(p.logs(), bad) {
			p.s.Errorf("the log of %s has %q", p.name, bad)
		}
	}
}

func (p *process) logs() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		p.s.Error(err)
	}
	return string(content)
}

// logged is the log lines with such an "event" or "msg".
func (p *process) logged(event string) (lines []logLine) {
	for line := range bytes.Lines([]byte(p.logs())) {
		var l logLine
		if json.Unmarshal(line, &l) == nil && (l.Event == event || l.Msg == event) {
			lines = append(lines, l)
		}
	}
	return lines
}

type logLine struct {
	Msg   string `json:"msg"`
	Event string `json:"event"`
	Job   string `json:"job_id"`
	Addr  string `json:"addr"`
}

// report is the body of /readyz.
type report struct {
	Status     string `json:"status"`
	Components map[string]struct {
		State  string `json:"state"`
		Detail string `json:"detail"`
	} `json:"components"`
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// readyz is what the process says of itself; the code is 0 if it says nothing.
func (p *process) readyz() (code int, r report) {
	if p.admin == "" {
		for _, l := range p.logged("admin server listens") {
			p.admin = l.Addr
		}
	}
	res, err := client.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return 0, r
	}
	defer res.Body.Close()
	if json.NewDecoder(res.Body).Decode(&r) != nil {
		return 0, report{}
	}
	return res.StatusCode, r
}

// awaitReadyz waits until /readyz has the code and the status, and components are
// in the given states: "listener", "deaf", …
func (p *process) awaitReadyz(code int, status string, states ...string) {
	p.s.Helper()
	var gotCode int
	var got report
	defer func() {
		if p.s.Failed() {
			p.s.Logf("/readyz of %s is %d %+v", p.name, gotCode, got)
		}
	}()
	p.s.await(fmt.Sprintf("/readyz of %s to be %d %s %v", p.name, code, status, states), func() bool {
		gotCode, got = p.readyz()
		for i := 0; i+1 < len(states); i += 2 {
			if got.Components[states[i]].State != states[i+1] {
				return false
			}
		}
		return gotCode == code && got.Status == status
	})
}

// ready waits until the process does all its work.
func (p *process) ready() *process {
	p.s.Helper()
	p.awaitReadyz(http.StatusOK, "ready")
	return p
}

// asExit is what a command that failed said.
func asExit(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(exit.Stderr)
	}
	return ""
}
