package webhook

import (
	"bytes"
	"encoding/base64"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const page = "../../docs/guides/webhooks.md"

// The receiver that docs/guides/webhooks.md shows accepts what we sign, with either of two secrets, and nothing else.
func TestThePagesReceiverVerifiesSignatures(t *testing.T) {
	t.Parallel()
	newer, older, other := [][]byte{bytes.Repeat([]byte("n"), 32)}, [][]byte{bytes.Repeat([]byte("o"), 24)}, [][]byte{make([]byte, 32)}
	url := pagesReceiver(t, secretPrefix+encoded(newer[0])+","+secretPrefix+encoded(older[0]))
	body, now := []byte(`{"to": "ada"}`), time.Now()
	for name, c := range map[string]struct {
		keys   [][]byte
		at     time.Time
		change func(*http.Request)
		want   int
	}{
		"the newer secret":         {newer, now, nil, http.StatusNoContent},
		"the older secret":         {older, now, nil, http.StatusNoContent},
		"a secret that it lacks":   {append(other, older...), now, nil, http.StatusNoContent},
		"another secret alone":     {other, now, nil, http.StatusUnauthorized},
		"no signature":             {nil, now, nil, http.StatusUnauthorized},
		"six minutes ago":          {newer, now.Add(-6 * time.Minute), nil, http.StatusUnauthorized},
		"in six minutes":           {newer, now.Add(6 * time.Minute), nil, http.StatusUnauthorized},
		"another id":               {newer, now, setting(headerWebhookID, "other"), http.StatusUnauthorized},
		"another time":             {newer, now.Add(-time.Minute), setting(headerTimestamp, "1"), http.StatusUnauthorized},
		"a signature of rubbish":   {newer, now, setting(headerSignature, "v1,é"), http.StatusUnauthorized},
		"a timestamp of no digits": {newer, now, setting(headerTimestamp, "²"), http.StatusUnauthorized},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		sign(request.Header, c.keys, "job-7", c.at, body)
		if c.change != nil {
			c.change(request)
		}
		if got := statusOf(t, request); got != c.want {
			t.Errorf("%s: the receiver answers %d, want %d", name, got, c.want)
		}
	}
	changed, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"to": "eve"}`))
	if err != nil {
		t.Fatal(err)
	}
	sign(changed.Header, newer, "job-7", now, body)
	if got := statusOf(t, changed); got != http.StatusUnauthorized {
		t.Errorf("another body: the receiver answers %d, want 401", got)
	}
}

func encoded(key []byte) string { return base64.StdEncoding.EncodeToString(key) }

func setting(header, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(header, value) }
}

func statusOf(t *testing.T, request *http.Request) int {
	t.Helper()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// pagesReceiver starts the page's program, on a free port, and returns its URL.
func pagesReceiver(t *testing.T, secrets string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```python\n(.*?)```").FindSubmatch(text)
	if shown == nil {
		t.Fatal("the page shows no receiver")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	_, port, _ := net.SplitHostPort(address)
	program := filepath.Join(t.TempDir(), "receiver.py")
	if err := os.WriteFile(program, bytes.Replace(shown[1], []byte("8000"), []byte(port), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	receiver := exec.CommandContext(t.Context(), python, program)
	receiver.Env = append(os.Environ(), "OUTBOX_WEBHOOK_SECRET="+secrets)
	receiver.Stderr = t.Output()
	if err := receiver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = receiver.Wait() }) // t.Context ends before, and kills it
	for range 200 {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return "http://" + address
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the receiver does not listen")
	return ""
}
