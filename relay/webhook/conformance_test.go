package webhook

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T) relaytest.Broker { return start(t) })
}

const largest = 200_000

var (
	secret    = secretPrefix + base64.StdEncoding.EncodeToString([]byte("a secret of thirty-two bytes !!!"))
	oldSecret = secretPrefix + base64.StdEncoding.EncodeToString([]byte("the secret that was before this !"))
	loopback  = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
)

// process is a receiver in a process of its own, with a proxy in front of it.
type process struct {
	*child.Process
	t       testing.TB
	address string
	dir     string
	proxy   *fault.Proxy
	url     string // by way of the proxy
}

func start(t testing.TB) *process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, address: l.Addr().String(), dir: t.TempDir()}
	_ = l.Close()
	p.Restart()
	t.Cleanup(p.Kill)
	if p.proxy, p.url, err = fault.NewProxy("http://" + p.address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.proxy.Close)
	if err := os.WriteFile(p.path("secrets"), []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

func (p *process) Restart() {
	p.t.Helper()
	var err error
	p.Process, err = child.Start("receiver", p.path("log"), os.Args[0], []string{receiverVariable + "=" + p.address}, nil, p.path("kept"), secret)
	if err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if conn, err := net.DialTimeout("tcp", p.address, time.Second); err == nil {
			_ = conn.Close()
			return
		}
	}
	log, _ := os.ReadFile(p.path("log"))
	p.t.Errorf("the receiver does not take connections:\n%s", log)
}

func (p *process) Kill() {
	if err := p.Kill9(); err != nil {
		p.t.Error(err)
	}
}

func (p *process) Stop() {
	p.t.Helper()
	if err := p.Process.Stop(); err != nil {
		p.t.Error(err)
	}
}

func (p *process) Continue() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Signal(s); err != nil {
		p.t.Error(err)
	}
}

func (p *process) Sink() relay.Sink {
	p.t.Helper()
	to := p.url
	if !p.Alive() { // the proxy would take the connection, and then hang up
		to = "http://" + p.address
	}
	s, err := Open(SinkConfig{URL: to, Allow: loopback, Signing: Signing{File: p.path("secrets")}})
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *process) Destination() string { return "/events" }
func (p *process) Missing() string     { return "/none" }
func (p *process) Forbidden() string   { return "/forbidden" }
func (p *process) Largest() int        { return largest }
func (p *process) Deduplicates() bool  { return false }
func (p *process) Secrets() []string   { return []string{strings.TrimPrefix(secret, secretPrefix)} }

// FoldsNames says that names of headers come back in lower case.
func (p *process) FoldsNames() bool { return true }

func (p *process) Slow(latency time.Duration) { p.proxy.Latency.Store(int64(latency)) }

func (p *process) Line() relaytest.Line {
	return relaytest.Line{Requests: &p.proxy.Requests, Answers: &p.proxy.Answers}
}

func (p *process) Received() []relay.Message { return readKept(p.t, p.path("kept")) }

func (p *process) Limit(messages int) (free func()) {
	p.admin("limit", messages)
	return func() { p.admin("limit", -1) }
}

func (p *process) Revoke() (restore func()) {
	p.admin("lock", true)
	return func() { p.admin("lock", false) }
}

func (p *process) admin(what string, to any) {
	p.t.Helper()
	res, err := http.Get(fmt.Sprintf("http://%s/admin/%s?to=%v", p.address, what, to))
	if err != nil {
		p.t.Fatal(err)
	}
	_ = res.Body.Close()
}
