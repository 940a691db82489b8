package webhook

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/posthaste-dev/posthaste/relay"
)

// receiverVariable makes this test's program a receiver: a process of its own that can be killed.
const receiverVariable = "POSTHASTE_RECEIVER"

func TestMain(m *testing.M) {
	if listen := os.Getenv(receiverVariable); listen != "" {
		if err := receive(listen, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// receiver keeps what is posted to /events in a file, a line each, before it answers.
type receiver struct {
	mu     sync.Mutex
	file   *os.File
	key    []byte
	left   int // how many it takes; below 0 there is no limit
	locked bool
}

func receive(listen, file, secret string) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
	if err != nil {
		return err
	}
	r := &receiver{key: key, left: -1}
	if r.file, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	return http.ListenAndServe(listen, r)
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/admin/limit":
		r.set(func() { r.left, _ = strconv.Atoi(req.FormValue("to")) })
		return
	case req.URL.Path == "/admin/lock":
		r.set(func() { r.locked = req.FormValue("to") == "true" })
		return
	case req.URL.Path == "/forbidden":
		http.Error(w, "not here", http.StatusForbidden)
		return
	case req.URL.Path != "/events":
		http.NotFound(w, req)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, largest))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		return
	}
	line, err := json.Marshal(kept{received(req, body), verify(r.key, req.Header, body)})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	status := http.StatusNoContent
	r.set(func() {
		switch {
		case r.locked || verify(r.key, req.Header, body) != "":
			status = http.StatusUnauthorized
		case r.left == 0:
			status = http.StatusTooManyRequests
		default:
			r.left--
			if _, err := r.file.Write(append(line, '\n')); err != nil {
				status = http.StatusInternalServerError
			}
		}
	})
	w.WriteHeader(status)
}

func (r *receiver) set(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// kept is a line of the file.
type kept struct {
	Message relay.Message
	Fault   string // of the signature
}

// verify checks a signature as a receiver does, and returns what is wrong with it. It shares no code with sign.
func verify(key []byte, header http.Header, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", header.Get("webhook-id"), header.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for signature := range strings.SplitSeq(header.Get("webhook-signature"), " ") {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return ""
		}
	}
	return "no signature of ours"
}

// received returns a request as the message that it was.
func received(req *http.Request, body []byte) relay.Message {
	m := relay.Message{ID: req.Header.Get("Idempotency-Key"), Destination: req.URL.Path, Body: body}
	if req.Header.Get("Webhook-Id") != m.ID {
		m.ID += " is not " + req.Header.Get("Webhook-Id")
	}
	for name, values := range req.Header {
		lower := strings.ToLower(name)
		own, ours := strings.CutPrefix(lower, "posthaste-header-")
		switch {
		case lower == "content-type":
			m.ContentType = values[0]
		case ours || strings.HasPrefix(lower, "ce-") || lower == "traceparent":
			value := values[0]
			if !ours {
				value, _ = url.PathUnescape(value)
			}
			m.Headers = append(m.Headers, relay.Header{Name: own, Value: value})
			switch lower {
			case "ce-partitionkey":
				m.Key = value
			case "ce-sequence":
				m.Position, _ = strconv.ParseInt(value, 10, 64)
			}
		}
	}
	return m
}

// readKept reads the file.
func readKept(t testing.TB, path string) (all []relay.Message) {
	t.Helper()
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return all // a line without an end was not answered
		}
		var k kept
		if err := json.Unmarshal(line, &k); err != nil {
			continue // two that a kill has run together: the first of them was not answered
		}
		if k.Fault != "" {
			t.Errorf("%s: %s", k.Message.ID, k.Fault)
		}
		all = append(all, k.Message)
	}
}
