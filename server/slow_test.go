package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// slowly are clients that keep a connection for as long as they are let.
var slowly = map[string]func(net.Conn) error{
	"a header, byte by byte": func(conn net.Conn) error {
		return drip(conn, "GET /jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "+strings.Repeat("x", 10_000))
	},
	"nothing at all": func(conn net.Conn) error {
		_, err := conn.Read(make([]byte, 1)) // until the server closes
		return err
	},
	"a body, byte by byte": func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"); err != nil {
			return err
		}
		return drip(conn, strings.Repeat(" ", 100_000))
	},
	"a body that nobody wants": func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"); err != nil {
			return err
		}
		return drip(conn, strings.Repeat(" ", 100_000))
	},
	"the beginning of a body where none is taken, and then silence": func(conn net.Conn) error {
		return beginBody(conn, "POST /jobs/01976f0e-7a5c-7d3e-8f4b-0123456789ab/cancel")
	},
	"the beginning of a body for a stream, and then silence": func(conn net.Conn) error {
		return beginBody(conn, "GET /changes")
	},
	"the beginning of a body for the console's stream, and then silence": func(conn net.Conn) error {
		return beginBody(conn, "GET /console/events")
	},
	"the beginning of a body for a file, and then silence": func(conn net.Conn) error {
		return beginBody(conn, "GET /console/jobs-export?format=csv")
	},
	"never reading the answers": func(conn net.Conn) error {
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		for { // until the server's buffers are full, and then until it closes
			if _, err := io.WriteString(conn, "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				return err
			}
		}
	},
	"a request, and then idle": func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, conn)
		if err == nil {
			err = io.EOF
		}
		return err
	},
}

// beginBody sends some of a body, and waits until the server closes.
func beginBody(conn net.Conn, request string) error {
	if _, err := io.WriteString(conn, request+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"+
		strings.Repeat("x", 65)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		return err
	}
	return io.EOF
}

// drip writes a byte every few milliseconds until the server has had enough.
func drip(conn net.Conn, text string) error {
	for i := range len(text) {
		if _, err := io.WriteString(conn, text[i:i+1]); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// H3: each kind of slow client, many at once, is cut off, and a client that is not
// slow is served all the while. (The times are a tenth of those in production, so
// that the test is short; those are checked below.)
func TestH3SlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	const attackers = 20 // of each kind
	pool := pgtest.New(t)
	config := Config{
		API:     api.Config{AnonymousLoopback: true, Timeout: 3 * time.Second, MaxInFlight: 4, MaxQueued: 4},
		Console: &console.Config{},
	}
	r := startWith(t, nil, alone(pool), config, func(a *apiServer) {
		a.patience = patience{time.Second, 3 * time.Second, 3 * time.Second, time.Second}
	})
	r.awaitReady()

	var wg sync.WaitGroup
	for kind, attack := range slowly {
		for range attackers {
			wg.Go(func() {
				conn, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Errorf("%s: %v", kind, err)
					return
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				if err := attack(conn); err == nil || isTimeout(err) {
					t.Errorf("%s: the server kept the connection (%v)", kind, err)
				}
			})
		}
	}
	cut := make(chan struct{})
	go func() { wg.Wait(); close(cut) }()
	served := 0
	for {
		asked := time.Now()
		res, err := probe.Get("http://" + r.addr + "/jobs")
		switch {
		case err == nil:
			if body := readAll(t, res); res.StatusCode == http.StatusOK {
				served++
			} else if time.Since(asked) < 2*time.Second { // else it is this machine that is slow
				t.Errorf("a client that is not slow: %d %s", res.StatusCode, body)
			}
		case time.Since(asked) < 2*time.Second:
			t.Errorf("a client that is not slow: %v", err)
		}
		select {
		case <-cut:
			if served == 0 {
				t.Error("nobody was served beside them")
			}
			t.Logf("%d slow clients were cut off, %d requests were served beside them", attackers*len(slowly), served)
			return
		default:
		}
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as net returns it
	return ok && timeout.Timeout()
}

func TestH3NoSlowClientIsKeptForHalfAMinute(t *testing.T) {
	t.Parallel()
	for what, took := range map[string]time.Duration{"header": usual.header, "request": usual.request, "answer": usual.answer} {
		if took <= 0 || took > 30*time.Second {
			t.Errorf("a client may take %s for its %s, want at most 30s", took, what)
		}
	}
	if usual.idle <= 0 || usual.idle > time.Minute {
		t.Errorf("a connection may idle for %s", usual.idle)
	}
}

// A header that is too large is refused before it has come in full.
func TestH3HeadersHaveABound(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	r := start(t, nil, alone(pool), Config{API: api.Config{AnonymousLoopback: true}})
	for name, header := range map[string]string{
		"one long": "X-Long: " + strings.Repeat("x", 1<<20), "many": strings.Repeat("X-Many: x\r\n", 100_000), "a long path": "",
	} {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		path := "/jobs"
		if header == "" {
			path += "?x=" + strings.Repeat("x", 1<<20)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		// The server may close the connection first.
		go func() { _, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", path, header) }()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && res.StatusCode < 400 {
			t.Errorf("%s: %d, want it refused", name, res.StatusCode)
		}
		if err != nil && isTimeout(err) {
			t.Errorf("%s: no answer", name)
		}
		_ = conn.Close()
	}
}
