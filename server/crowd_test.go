package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// apiAlone starts a process that serves the API and does nothing else.
func apiAlone(t *testing.T, change func(*Config)) *running {
	t.Helper()
	config := Config{API: api.Config{AnonymousLoopback: true}}
	change(&config)
	r := start(t, nil, alone(pgtest.New(t)), config)
	r.awaitReady()
	return r
}

// honest is a client that stores one small job after the other.
type honest struct {
	t      *testing.T
	url    string
	client *http.Client
}

// ask returns how long each of n answers that are a 202 took, the shortest first, and
// how many others there were.
func (h honest) ask(n int) (took []time.Duration, refused int) {
	h.t.Helper()
	for len(took) < n && refused < 10*n {
		asked := time.Now()
		res, err := h.client.Post(h.url+"/jobs", "application/json", strings.NewReader(`{"kind":"mail"}`))
		if err != nil {
			h.t.Errorf("an honest client: %v", err)
			return took, refused
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		switch {
		case res.StatusCode == http.StatusAccepted:
			took = append(took, time.Since(asked))
		case res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") != "":
			refused++
		default:
			h.t.Errorf("an honest client: %d", res.StatusCode)
		}
	}
	slices.Sort(took)
	return took, refused
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

// memory is how much more of it is in use than at the beginning.
type memory struct {
	most       atomic.Int64
	over, done chan struct{}
}

// heap follows how much memory is in use until stop is called.
func heap() *memory {
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse)
	}
	runtime.GC()
	before := inUse()
	m := &memory{over: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for {
			m.most.Store(max(m.most.Load(), inUse()-before))
			select {
			case <-m.over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return m
}

// calm waits until memory has come into use, and then no more of it for a second, at most for the given time.
func (m *memory) calm(most time.Duration) {
	const quiet, some = time.Second, 1 << 20
	before, rose := m.most.Load(), time.Now()
	for began, first := rose, before; time.Since(began) < most && (before-first < some || time.Since(rose) < quiet); time.Sleep(10 * time.Millisecond) {
		if now := m.most.Load(); now > before {
			before, rose = now, time.Now()
		}
	}
}

// stop returns the most that there was.
func (m *memory) stop() int64 {
	close(m.over)
	<-m.done
	return m.most.Load()
}

// pause is between two attempts of a client of a crowd: without it those that are refused take the whole machine, which
// is no matter of the server's.
const pause = 20 * time.Millisecond

// noise is what a comparison of two times allows for besides: this machine has other
// things to do. It is much less than bodyTime.
const noise = 2 * time.Second

// bodyTime is how long a slow body is waited for: an honest client that waited for one
// would take as long.
const bodyTime = 8 * time.Second

// H3, bodies: clients that send nearly all of the largest batch that there is, and then
// nothing, take no more memory than there is for bodies, and an honest client waits no
// longer beside them.
func TestH3SlowBodiesTakeBoundedMemory(t *testing.T) { // not parallel: it looks at the memory of the process
	const attackers, size, bound = 40, 15 << 20, 100 << 20 // their bodies are 600 MiB
	r := apiAlone(t, func(c *Config) { c.API.Timeout = bodyTime })
	client := honest{t, "http://" + r.addr, &http.Client{Timeout: 3 * bodyTime}}
	alone, _ := client.ask(200)
	text := bytes.Repeat([]byte("\n"), size-1)
	memory := heap()

	over := make(chan struct{})
	var wg sync.WaitGroup
	for range attackers {
		wg.Go(func() {
			for {
				slowBatch(r.addr, size, text, over)
				select {
				case <-over:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	beside, refused := client.ask(400)
	close(over)
	wg.Wait()
	if most := memory.stop(); most > bound {
		t.Errorf("%d MiB more memory, want %d at most", most>>20, bound>>20)
	}
	if refused > 0 || percentile(beside, 99) > 2*percentile(alone, 99)+noise {
		t.Errorf("an honest client: p99 is %s beside them and %s without, %d requests refused", percentile(beside, 99), percentile(alone, 99), refused)
	}
	t.Logf("p99 %s alone, %s beside them", percentile(alone, 99), percentile(beside, 99))
}

// slowBatch sends a batch but for its last byte, and waits until the server has had
// enough, or over is closed.
func slowBatch(addr string, size int, text []byte, over <-chan struct{}) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		defer func() { _ = conn.Close() }()
		select {
		case <-over:
		case <-ended:
		}
	}()
	_, _ = fmt.Fprintf(conn, "POST /jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n", size)
	_, _ = conn.Write(text) // it may be refused before
	_, _ = io.Copy(io.Discard, conn)
}

// Files: clients that ask for the explorer's largest file, need no token, and never read the answer.
func TestUnreadFilesTakeBoundedMemory(t *testing.T) { // not parallel: it looks at the memory of the process
	const attackers, each, bound = 200, 4, 50 << 20 // the system's buffers take the first answers of a connection
	r := apiAlone(t, func(*Config) {})
	memory := heap()
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range attackers {
		wg.Go(func() {
			neverReading(r.addr, []byte(strings.Repeat("GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n", each)), over)
		})
	}
	memory.calm(3 * time.Second)
	close(over)
	wg.Wait()
	if most := memory.stop(); most > bound {
		t.Errorf("%d MiB more memory, want %d at most", most>>20, bound>>20)
	} else {
		t.Logf("%d MiB more memory", most>>20)
	}
}

// Payloads: clients of one caller that ask for the largest payload there may be, and never read the answer.
func TestUnreadPayloadsTakeBoundedMemory(t *testing.T) { // not parallel: it looks at the memory of the process
	const attackers, each, bound = 100, 2, 200 << 20 // the payloads alone are 800 MiB
	pool := pgtest.New(t)
	job, err := outbox.Enqueue(t.Context(), pool, outbox.Raw{KindName: "mail", Payload: []byte(`"` + strings.Repeat("x", 4<<20-2) + `"`)}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, nil, alone(pool), Config{API: api.Config{Authenticator: anybody{}}})
	r.awaitReady()
	requests := []byte(strings.Repeat("GET /jobs/"+job.String()+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer reader\r\n\r\n", each))
	memory := heap()
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range attackers {
		wg.Go(func() { neverReading(r.addr, requests, over) })
	}
	memory.calm(5 * time.Second)
	other := &http.Client{Timeout: time.Minute, Transport: named("another")}
	defer other.CloseIdleConnections()
	asked := time.Now()
	if res, err := other.Get("http://" + r.addr + "/jobs"); err != nil || res.StatusCode != http.StatusOK || time.Since(asked) > bodyTime {
		t.Errorf("another caller: %v, %v after %s", res, err, time.Since(asked))
	} else {
		readAll(t, res)
	}
	close(over)
	wg.Wait()
	if most := memory.stop(); most > bound {
		t.Errorf("%d MiB more memory, want %d at most", most>>20, bound>>20)
	} else {
		t.Logf("%d MiB more memory", most>>20)
	}
}

// neverReading sends requests, and reads nothing of their answers until over is closed.
func neverReading(addr string, requests []byte, over <-chan struct{}) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	_, _ = conn.Write(requests)
	<-over
}

// Forms of the console: clients that send nearly all of a large form, with or without a login, and then nothing.
func TestSlowFormsTakeBoundedMemory(t *testing.T) { // not parallel: it looks at the memory of the process
	const attackers, size, bound = 200, 1 << 20, 50 << 20 // their forms are 200 MiB
	r := apiAlone(t, func(c *Config) { c.Console = &console.Config{} })
	for _, page := range []string{"login", "view-save"} {
		form := fmt.Appendf(nil, "POST /console/%s HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\n"+
			"Content-Length: %d\r\n\r\n%s", page, size, strings.Repeat("x", size-1))
		memory := heap()
		over := make(chan struct{})
		var wg sync.WaitGroup
		for range attackers {
			wg.Go(func() { neverReading(r.addr, form, over) })
		}
		memory.calm(2 * time.Second)
		asked := time.Now()
		res, err := probe.Get("http://" + r.addr + "/console/jobs")
		if err != nil || res.StatusCode != http.StatusOK || time.Since(asked) > noise {
			t.Errorf("%s: a page beside them: %v, %v after %s", page, res, err, time.Since(asked))
		} else {
			readAll(t, res)
		}
		close(over)
		wg.Wait()
		if most := memory.stop(); most > bound {
			t.Errorf("%s: %d MiB more memory, want %d at most", page, most>>20, bound>>20)
		} else {
			t.Logf("%s: %d MiB more memory", page, most>>20)
		}
	}
}

// anybody takes the bearer for the name.
type anybody struct{}

func (anybody) Authenticate(_ context.Context, bearer string) (access.Principal, error) {
	return access.Principal{Name: bearer, Tenant: outbox.RootTenant, Capabilities: map[access.Capability]bool{access.JobsEnqueue: true, access.JobsRead: true, access.PayloadRead: true}}, nil
}

// crowd has n clients, each with a name of its own, send the same all the time. taken
// is closed with the first 202; stop returns what they were answered: 202, 429, and other
// statuses, none of them wanted.
func crowd(url, path, contentType string, body []byte, n int) (taken <-chan struct{}, stop func() map[int]int) {
	first := make(chan struct{})
	one := sync.OnceFunc(func() { close(first) })
	over := make(chan struct{})
	var mu sync.Mutex
	var wg sync.WaitGroup
	answers := map[int]int{}
	for i := range n {
		wg.Go(func() {
			own := http.Client{Timeout: time.Minute, Transport: named(fmt.Sprint("client-", i))}
			defer own.CloseIdleConnections()
			for {
				// A batch may be refused before it was sent.
				if res, err := own.Post(url+path, contentType, bytes.NewReader(body)); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					mu.Lock()
					answers[res.StatusCode]++
					mu.Unlock()
					if res.StatusCode == http.StatusAccepted {
						one()
					}
				}
				select {
				case <-over:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	return first, func() map[int]int {
		close(over)
		wg.Wait()
		return answers
	}
}

// wantCrowded checks that some were served and some refused, and none anything else.
func wantCrowded(t *testing.T, answers map[int]int) {
	t.Helper()
	if answers[http.StatusAccepted] == 0 || answers[http.StatusTooManyRequests] == 0 || len(answers) != 2 {
		t.Errorf("answers by status = %v, want some of 202 and of 429, and no other", answers)
	}
}

// H4: a hundred clients for each request that is worked on: what is taken is answered
// nearly as fast as ever.
func TestH4WhatIsTakenInAnOverloadIsAnsweredAsEver(t *testing.T) {
	r := apiAlone(t, func(c *Config) { c.API = api.Config{Authenticator: anybody{}, MaxInFlight: 2, MaxQueued: 4} })
	client := honest{t, "http://" + r.addr, &http.Client{Timeout: 3 * bodyTime, Transport: named("honest")}}
	alone, _ := client.ask(200)
	_, stop := crowd(client.url, "/jobs", "application/json", []byte(`{"kind":"mail"}`), 200)
	time.Sleep(500 * time.Millisecond) // until it is one
	beside, refused := client.ask(10)
	wantCrowded(t, stop())
	if percentile(beside, 99) > 3*percentile(alone, 99)+noise {
		t.Errorf("what was taken: p99 is %s in the overload and %s without", percentile(beside, 99), percentile(alone, 99))
	}
	t.Logf("p99 %s alone, %s in the overload, with %d refused on the way", percentile(alone, 99), percentile(beside, 99), refused)
}

// H4, memory: 80 callers who send one batch of 8 MiB after the other.
func TestH4AnOverloadOfBatchesTakesBoundedMemory(t *testing.T) { // not parallel: it looks at the memory of the process
	const bound = 384 << 20 // their bodies alone are 640 MiB
	r := apiAlone(t, func(c *Config) { c.API = api.Config{Authenticator: anybody{}, Timeout: time.Minute} })
	batch := bytes.Repeat([]byte(`{"kind":"mail","payload":"`+strings.Repeat("x", 80_000)+"\"}\n"), 100)
	memory := heap()
	taken, stop := crowd("http://"+r.addr, "/jobs/batch", "application/x-ndjson", batch, 80)
	memory.calm(4 * time.Second)
	select { // beside other tests, with the race detector, 8 MiB take long to be read
	case <-taken:
	case <-time.After(4 * time.Minute):
	}
	answers := stop()
	if most := memory.stop(); most > bound {
		t.Errorf("%d MiB more memory, want %d at most", most>>20, bound>>20)
	} else {
		t.Logf("%d MiB more memory; answers %v", most>>20, answers)
	}
	wantCrowded(t, answers)
}

// named returns a transport of one connection whose requests say who makes them.
func named(name string) http.RoundTripper {
	return bearing{&http.Transport{MaxConnsPerHost: 1}, name}
}

type bearing struct {
	*http.Transport
	name string
}

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.name)
	return b.Transport.RoundTrip(r)
}

// Connections have a bound: one that comes when it is reached takes the place of an
// idle one, or waits until another leaves, and a stop does not wait for either.
func TestConnectionsHaveABound(t *testing.T) {
	t.Parallel()
	const most = 3
	r := apiAlone(t, func(c *Config) { c.Connections = most })
	ask := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var busy []net.Conn
	for range most {
		conn := dial()
		// The rest comes later.
		if _, err := io.WriteString(conn, "GET /openapi.json HTTP/1.1\r\nHost: local"); err != nil {
			t.Fatal(err)
		}
		busy = append(busy, conn)
	}
	another := dial()
	_ = another.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if err := ask(another); !isTimeout(err) {
		t.Fatalf("one more than there may be: %v, want it to wait", err)
	}
	_ = busy[0].Close()
	_ = another.SetDeadline(time.Now().Add(time.Minute))
	if res, err := http.ReadResponse(bufio.NewReader(another), nil); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("when one has left: %v", err)
	}
	if err := ask(dial()); err != nil { // in place of another, which is idle
		t.Fatalf("beside one that does nothing: %v", err)
	}
	r.end(nil)
	if _, err := net.Dial("tcp", r.addr); err == nil {
		t.Error("connections are still taken after the end")
	}
}
