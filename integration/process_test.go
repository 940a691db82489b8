package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// process is a program under test.
type process struct {
	*child.Process
	s     *story
	admin string // address; see readyz
}

// worker starts a worker. Its environment begins with settings that make stories short; settings in env override them.
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
	return s.startPrepared(program, name, nil, env, args...)
}

// startPrepared starts a process, and calls prepare before the process has run its first instruction.
func (s *story) startPrepared(program, name string, prepare func(pid int) error, env []string, args ...string) *process {
	s.Helper()
	all := append([]string{
		"OUTBOX_DATABASE_URL=" + s.url, "OUTBOX_ADMIN_ADDR=127.0.0.1:0", "OUTBOX_LOG_FORMAT=json", "OUTBOX_POLL_INTERVAL=5m",
		"VERIFY_LEDGER=" + s.ledger.Path(), "VERIFY_NAME=" + name,
	}, env...)
	log := filepath.Join(s.ArtifactDir(), fmt.Sprintf("%02d-%s.log", len(s.procs), name))
	started, err := child.Start(name, log, program, all, prepare, args...)
	if err != nil {
		s.Fatal(err)
	}
	p := &process{Process: started, s: s}
	s.procs = append(s.procs, p)
	return p
}

// must fails the story if err is not nil.
func (p *process) must(err error) {
	p.s.Helper()
	if err != nil {
		p.s.Fatal(err)
	}
}

// signal sends a signal that does not end the process.
func (p *process) signal(sig syscall.Signal) {
	p.s.Helper()
	p.must(p.Signal(sig))
}

// kill9 kills the process with SIGKILL, and returns when it has ended.
func (p *process) kill9() {
	p.s.Helper()
	p.must(p.Kill9())
}

// terminate sends SIGTERM.
func (p *process) terminate() {
	p.s.Helper()
	p.must(p.Terminate())
}

// exit waits for the end of a process that was asked to stop, and returns its exit status.
func (p *process) exit(within time.Duration) int {
	p.s.Helper()
	select {
	case <-p.Ended():
	case <-time.After(within):
		p.s.Fatalf("%s is still there %s after it was told to stop", p.Name, within)
	}
	return p.ExitCode()
}

// close kills a process at the end of its story, and checks that nothing happened to it that must not.
func (p *process) close() {
	if fate := p.Fate(); fate != "" {
		p.s.Error(fate)
	}
	p.must(p.Kill9())
}

func (p *process) logs() string {
	content, err := os.ReadFile(p.Log)
	if err != nil {
		p.s.Error(err)
	}
	return string(content)
}

// logged returns the log lines with the given "event" or "msg".
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

// readyz returns the process's /readyz; the code is 0 if there is no answer.
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

// awaitReadyz waits until /readyz has the code and the status, and components are in the given states: "listener",
// "not listening", …
func (p *process) awaitReadyz(code int, status string, states ...string) {
	p.s.Helper()
	var gotCode int
	var got report
	defer func() {
		if p.s.Failed() {
			p.s.Logf("/readyz of %s is %d %+v", p.Name, gotCode, got)
		}
	}()
	p.s.await(fmt.Sprintf("/readyz of %s to be %d %s %v", p.Name, code, status, states), func() bool {
		gotCode, got = p.readyz()
		for i := 0; i+1 < len(states); i += 2 {
			if got.Components[states[i]].State != states[i+1] {
				return false
			}
		}
		return gotCode == code && got.Status == status
	})
}

// ready waits until the process reports that it is ready.
func (p *process) ready() *process {
	p.s.Helper()
	p.awaitReadyz(http.StatusOK, "ready")
	return p
}

// asExit returns the error output of a command that failed.
func asExit(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(exit.Stderr)
	}
	return ""
}
