package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	trickle   = 10 * time.Millisecond // between two jobs, while the cost of viewers is measured
	probeEach = 97 * time.Millisecond // between two jobs that no worker handles, whose changes are timed
	burnDowns = 9                     // pairs of burn-downs, with viewers and without, in alternating order
	crowd     = 20                    // viewers beside a burn-down
)

// viewed measures the console while people look at it: what they cost while a hundred jobs per second are dispatched,
// how soon a viewer's stream has a change, and how much slower a burn-down is beside twenty of them. Everything runs in
// one process, including the viewers, so the server alone costs less than is measured here.
func viewed(ctx context.Context, r *rig) ([]Figure, error) {
	viewers, duration := cmp.Or(r.Clients, 50), cmp.Or(r.Duration, 20*time.Second)
	addr, bearer, stop, err := r.serve(ctx, r.Console)
	if err != nil {
		return nil, err
	}
	defer stop()
	crowdOf := func(n int) func(context.Context) error {
		return func(ctx context.Context) error { return look(ctx, "http://"+addr+"/", bearer, n) }
	}
	alone, _, err := r.trickled(ctx, duration, nil)
	if err != nil {
		return nil, err
	}
	beside, seen, err := r.trickled(ctx, duration, func(ctx context.Context, probes *probes) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return crowdOf(viewers)(ctx) })
		group.Go(func() error { return probes.watch(ctx, "http://"+addr+"/", bearer) })
		return group.Wait()
	})
	if err != nil {
		return nil, err
	}
	figures := []Figure{
		{"alone_core_percent", alone}, {"viewed_core_percent", beside}, {"viewers_core_percent", beside - alone},
	}
	figures = append(figures, named("change_seen_", seen)...)
	kept, err := r.burnedInPairs(ctx, crowdOf(crowd))
	return append(figures, kept...), err
}

// burnedInPairs measures how much of a burn-down's rate is kept beside viewers: for each pair of burn-downs the share
// that is kept, and over the pairs the median, because a machine is faster at some times than at others.
func (r *rig) burnedInPairs(ctx context.Context, viewers func(context.Context) error) ([]Figure, error) {
	if _, err := r.burned(ctx, nil); err != nil { // the first one is slower
		return nil, err
	}
	var rates, costs [2][]float64
	var kept []float64
	for pair := range burnDowns {
		for turn := range 2 {
			i, also := (pair+turn)%2, viewers
			if i == 0 {
				also = nil
			}
			b, err := r.burned(ctx, also)
			if err != nil {
				return nil, err
			}
			rates[i], costs[i] = append(rates[i], b.rate), append(costs[i], b.cost)
		}
		kept = append(kept, 100*rates[1][pair]/rates[0][pair])
	}
	slices.Sort(kept)
	var figures []Figure
	for i, name := range []string{"burndown_alone_", "burndown_viewed_"} {
		figures = append(figures, Figure{name + "jobs_per_s", median(rates[i])},
			Figure{name + "cpu_us_per_job", median(costs[i])})
	}
	return append(figures, Figure{"burndown_kept_percent", kept[burnDowns/2]},
		Figure{"burndown_kept_least_percent", kept[0]}, Figure{"burndown_kept_most_percent", kept[burnDowns-1]}), nil
}

// burnDown holds the jobs dispatched per second, and the processor time of this process and the server for each, in µs:
// other load on the machine changes the rate more than that time.
type burnDown struct{ rate, cost float64 }

// trickled dispatches jobs one by one for the duration, and returns the share of a core that this process used, and how
// long it took until changes of the jobs that no worker handles were seen.
func (r *rig) trickled(ctx context.Context, duration time.Duration,
	also func(context.Context, *probes) error,
) (percent float64, seen []time.Duration, err error) {
	w, err := r.work(ctx, r.system, nil)
	if err != nil {
		return 0, nil, err
	}
	ctx2, end := context.WithCancel(ctx)
	group, ctx2 := errgroup.WithContext(ctx2)
	p := &probes{stored: map[string]time.Time{}}
	if also != nil {
		group.Go(func() error { return also(ctx2, p) })
	}
	time.Sleep(2 * time.Second) // wait for the viewers
	cpu, started := cpuTime(), time.Now()
	var stored, probed int
	for ; time.Since(started) < duration && err == nil; stored++ {
		if err = backoff.Sleep(ctx2, time.Until(started.Add(time.Duration(stored)*trickle))); err == nil {
			err = r.system.EnqueueMany(ctx2, stored, 1)
		}
		if err == nil && also != nil && time.Since(started) > time.Duration(probed)*probeEach {
			err = p.store(ctx2, r)
			probed++
		}
	}
	percent = 100 * float64(cpuTime()-cpu) / float64(time.Since(started))
	time.Sleep(time.Second) // wait until the last changes are seen
	end()
	if wait := group.Wait(); !errors.Is(wait, context.Canceled) {
		err = cmp.Or(wait, err)
	}
	_, cleared := r.pool.Exec(ctx, `DELETE FROM outbox.jobs WHERE kind = 'bench.other'`)
	if err == nil { // otherwise a counted job may not be stored
		err = r.settled(ctx, w, int64(stored))
	}
	return percent, p.seen, errors.Join(err, cleared, w.stop())
}

// burned burns jobs down and returns the rate and the cost.
func (r *rig) burned(ctx context.Context, also func(context.Context) error) (b burnDown, err error) {
	n := cmp.Or(r.Jobs, 150_000)
	if err := r.calm(ctx); err != nil {
		return b, err
	}
	if err := r.insert(ctx, n); err != nil {
		return b, err
	}
	ctx2, end := context.WithCancel(ctx)
	defer end()
	group, ctx2 := errgroup.WithContext(ctx2)
	if also != nil {
		group.Go(func() error { return also(ctx2) })
	}
	time.Sleep(2 * time.Second)
	before, err := r.computed(ctx)
	if err != nil {
		return b, err
	}
	started := time.Now()
	w, err := r.work(ctx, r.system, nil)
	if err == nil {
		err = r.settled(ctx, w, int64(n))
	}
	b.rate = perSecond(int64(n), started)
	after, failed := r.computed(ctx)
	b.cost = float64((after - before).Microseconds()) / float64(n)
	end()
	if wait := group.Wait(); !errors.Is(wait, context.Canceled) {
		err = cmp.Or(err, wait)
	}
	return b, errors.Join(err, failed, w.stop())
}

// probes are jobs whose changes are timed.
type probes struct {
	mu     sync.Mutex
	stored map[string]time.Time // by id: when the job was committed
	seen   []time.Duration
}

func (p *probes) store(ctx context.Context, r *rig) error {
	id, err := outbox.Enqueue(ctx, r.pool, outbox.Raw{KindName: "bench.other", Payload: []byte(`{}`)},
		outbox.Options{Queue: "probes"})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored[id.String()] = time.Now()
	return err
}

// watch follows the stream as a viewer, and records when the changes of the probes arrive.
func (p *probes) watch(ctx context.Context, base, bearer string) error {
	client, err := signedIn(ctx, base, bearer)
	if err != nil {
		return err
	}
	return client.follow(ctx, func(id string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if at, ok := p.stored[id]; ok {
			p.seen = append(p.seen, time.Since(at))
			delete(p.stored, id)
		}
	})
}

// look runs viewers until ctx ends. Half of them show the list of jobs and request its rows again once they have
// changed; the other half show the queues and request them again every five seconds. All follow the stream. The pages'
// scripts send requests as often.
func look(ctx context.Context, base, bearer string, viewers int) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range viewers {
		group.Go(func() error {
			client, err := signedIn(ctx, base, bearer)
			if err != nil {
				return err
			}
			if n%2 == 0 {
				return client.lookAtQueues(ctx)
			}
			return client.lookAtJobs(ctx)
		})
	}
	return group.Wait()
}

// viewer is a browser that has signed in.
type viewer struct {
	base, cookie string
}

func signedIn(ctx context.Context, base, bearer string) (v viewer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"login",
		strings.NewReader(url.Values{"token": {bearer}}.Encode()))
	if err != nil {
		return v, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return v, err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSeeOther || len(res.Cookies()) == 0 {
		return v, fmt.Errorf("sign in: got %s", res.Status)
	}
	return viewer{base, res.Cookies()[0].Name + "=" + res.Cookies()[0].Value}, nil
}

// get requests a page as a browser does, compressed unless it is to be read, and again after a second if there are too
// many requests.
func (v viewer) get(ctx context.Context, page string, header ...string) (io.ReadCloser, error) {
	for {
		body, status, err := v.getOnce(ctx, page, header...)
		if status != http.StatusTooManyRequests {
			return body, err
		}
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

func (v viewer) getOnce(ctx context.Context, page string,
	header ...string,
) (body io.ReadCloser, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+page, nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Cookie", v.cookie)
	req.Header.Set("Accept-Encoding", "gzip")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, 0, err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, res.StatusCode, fmt.Errorf("get %s: %s", page, res.Status)
	}
	return res.Body, res.StatusCode, nil
}

// read reads a page to its end.
func (v viewer) read(ctx context.Context, page string, header ...string) (string, error) {
	body, err := v.get(ctx, page, header...)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	return string(text), err
}

// follow reads the stream until ctx ends.
func (v viewer) follow(ctx context.Context, changed func(id string)) error {
	body, err := v.get(ctx, "events", "Accept", "text/event-stream")
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	for lines := bufio.NewScanner(body); lines.Scan(); {
		// Keep this cheap: real browsers run on other machines.
		if _, id, ok := bytes.Cut(lines.Bytes(), []byte(`data: {"id":"`)); ok && len(id) > 36 {
			changed(string(id[:36]))
		}
	}
	return cmp.Or(ctx.Err(), errors.New("the stream has ended"))
}

func (v viewer) lookAtQueues(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		body, err := v.get(ctx, "events", "Accept", "text/event-stream")
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		_, _ = io.Copy(io.Discard, body)
		return cmp.Or(ctx.Err(), errors.New("the stream has ended"))
	})
	group.Go(func() error {
		for {
			if _, err := v.read(ctx, "queues"); err != nil {
				return cmp.Or(ctx.Err(), err)
			}
			if err := backoff.Sleep(ctx, 5*time.Second); err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

var rowID = regexp.MustCompile(`data-job="([^"]*)"`)

func (v viewer) lookAtJobs(ctx context.Context) error {
	text, err := v.read(ctx, "jobs", "Accept-Encoding", "identity")
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	var mu sync.Mutex
	shown, stale := map[string]bool{}, map[string]bool{}
	for _, m := range rowID.FindAllStringSubmatch(text, -1) {
		shown[m[1]] = true
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return v.follow(ctx, func(id string) {
			mu.Lock()
			defer mu.Unlock()
			if shown[id] {
				stale[id] = true
			}
		})
	})
	group.Go(func() error {
		for {
			if err := backoff.Sleep(ctx, 2*time.Second); err != nil {
				return err
			}
			mu.Lock()
			var ids []string
			for id := range stale {
				ids = append(ids, id)
			}
			clear(stale)
			mu.Unlock()
			if len(ids) == 0 {
				continue
			}
			if _, err := v.read(ctx, "rows?id="+strings.Join(ids, ",")); err != nil {
				return cmp.Or(ctx.Err(), err)
			}
		}
	})
	return group.Wait()
}
