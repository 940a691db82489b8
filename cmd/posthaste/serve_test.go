package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// lockedBuffer is written by a command and read by a test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serving starts "posthaste serve" as a process of its own.

func serving(t *testing.T, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	return servingWith(t, nil, args...)
}

// servingWith starts the process as serving does, with more environment variables.
func servingWith(t *testing.T, variables []string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	logs := new(lockedBuffer)
	cmd := exec.Command(self, append([]string{"serve", "--admin-addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL=")
	cmd.Env = append(cmd.Env, variables...)
	cmd.Stderr = logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended unless the test failed
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the logs of serve:\n%s", logs)
		}
	})
	return cmd, logs
}

func awaitText(t *testing.T, what string, text func() string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s := text(); strings.Contains(s, what) {
			return s
		}
	}
	t.Fatalf("waited in vain for %q", what)
	return ""
}

// adminAddr reads the address from the logs.

func adminAddr(t *testing.T, logs *lockedBuffer) string {
	t.Helper()
	for line := range strings.Lines(awaitText(t, "admin server listens", logs.String)) {
		var entry struct{ Msg, Addr string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "admin server listens" {
			return entry.Addr
		}
	}
	t.Fatal("no address in the logs")
	return ""
}

func TestServeDeliversToAWebhookAndStopsInGoodOrder(t *testing.T) {
	t.Parallel()
	bodies, signed := make(chan string, 1), make(chan bool, 1)
	const key = "a secret of thirty-two bytes !!!"
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte(key))
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), b)
		signed <- r.Header.Get("Webhook-Signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
		bodies <- r.Header.Get("Posthaste-Job-Id") + " " + string(b)
	}))
	defer receiver.Close()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	secret := "OUTBOX_WEBHOOK_SECRET=whsec_" + base64.StdEncoding.EncodeToString([]byte(key))
	cmd, logs := servingWith(t, []string{secret}, "--database-url", url, "--webhook", "greet="+receiver.URL)
	addr := adminAddr(t, logs)
	awaitText(t, "listener   listening", func() string { return posthaste(t, nil, "", "healthcheck", "--admin-addr", addr).out })

	id := strings.TrimSpace(ok(t, e, "enqueue", "greet", `{"name": "Ada"}`))
	select {
	case got := <-bodies:
		if want := id + ` {"name": "Ada"}`; got != want {
			t.Errorf("the receiver got %q, want %q", got, want)
		}
		if !<-signed {
			t.Error("the request is not signed by the secret")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the receiver got nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v, want exit status 0", err)
	}
	if r := posthaste(t, nil, "", "healthcheck", "--admin-addr", addr); r.code != exitFailed {
		t.Errorf("healthcheck of a process that is gone got %+v, want exit status 1", r)
	}
}

func TestASecondSignalCutsRunningJobs(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-release
	}))
	defer receiver.Close()
	defer close(release)
	url := pgtest.URL(t)
	cmd, logs := serving(t, "--database-url", url, "--webhook", "greet="+receiver.URL, "--grace-period", "1h")
	ok(t, env{"DATABASE_URL": url}, "enqueue", "greet")
	<-arrived
	_ = cmd.Process.Signal(syscall.SIGTERM)
	awaitText(t, `"stopping"`, logs.String)
	again := time.NewTicker(50 * time.Millisecond) // one that comes too soon is the same signal
	defer again.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for waiting := true; waiting; {
		select {
		case <-ended:
			waiting = false
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("serve ended with status %d, want 1", code)
	}
}

func TestServeWithNothingToHandleSaysSo(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer stop()
	r := posthasteUntil(ctx, env{"DATABASE_URL": pgtest.URL(t), "OUTBOX_ADMIN_ADDR": "off", "OUTBOX_LOG_FORMAT": "text"}, "", "serve")
	if want := "no handler and no webhook: jobs are left alone"; r.code != exitOK || !strings.Contains(r.errOut, want) {
		t.Errorf("got %+v, want exit status 0 and %q", r, want)
	}
}
