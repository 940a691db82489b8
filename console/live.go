package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

const (
	keepAlive    = 15 * time.Second // between comments on a stream without events
	writeTimeout = 10 * time.Second // for each write: a browser that takes longer is dropped
	maxStreams   = 256              // at once
	maxOwn       = 64               // per caller, for example all people of a tenant: it cannot take all
	maxRows      = 200              // per request
	maxBurst     = 256 << 10        // bytes of changes at once; beyond it, pages read themselves again
	maxChanges   = 5_000            // of one look, however small; beyond it, they are not counted
	burstSample  = 100              // changes of such a burst that are sent; tail.js lists as many at once
)

// pace is how a page keeps up to date: it is read again at the earliest change seconds after a change of a job, or
// every so many seconds, and soon after an act of an operator on something other than a job; with rows, the rows of its
// list follow the changes themselves; with tail, it is a list of the changes.
type pace struct {
	rows   bool
	tail   bool
	change int // 0 means not after changes
	every  int // 0 means not periodically
}

// paces maps pages to their paces; a page that is not here does not update. A page that needs few queries may follow
// more closely.
var paces = map[string]pace{
	"problems": {every: 10}, "now": {change: 5}, "live": {tail: true}, "jobs": {rows: true}, "job": {change: 2},
	"letters": {change: 10}, "queues": {change: 5}, "queue": {change: 5},
	"keys": {change: 10}, "key": {change: 10}, "workers": {every: 15}, "sinks": {every: 10}, "sink": {every: 10},
	"schedules": {every: 30}, "schedule": {every: 30},
	"operations": {every: 5}, "operation": {every: 2},
}

// pace returns how this page keeps up to date.
func (v *visit) pace() pace {
	if !v.known || v.route == nil || v.r.Method != http.MethodGet || v.status != 0 {
		return pace{}
	}
	p := paces[v.route.path]
	// Revealing a payload is reading it, and the audit says so: a page does not do that by itself.
	if v.param("reveal") != "" || v.over {
		return pace{}
	}
	if v.route.path == "letters" && v.param("error") != "" {
		p = pace{rows: true} // a letter that was replayed stays in its place, and shows that
	}
	return p
}

// attributes returns the pace for live.js.
func (p pace) attributes() templ.Attributes {
	a := templ.Attributes{}
	for name, is := range map[string]bool{"data-rows": p.rows, "data-tail": p.tail} {
		if is {
			a[name] = true
		}
	}
	for name, seconds := range map[string]int{"data-change": p.change, "data-every": p.every} {
		if seconds > 0 {
			a[name] = strconv.Itoa(seconds)
		}
	}
	return a
}

// caller returns the caller whose share the visit uses; zero for all who are not signed in.
func (v *visit) caller() callers.Caller {
	if !v.known {
		return callers.Caller{}
	}
	return callers.Of(v.who)
}

// streamName identifies a login: tabs of the same browser share a stream if they may see the same. It discloses nothing
// that the page does not.
func (v *visit) streamName() string {
	if !v.known {
		return ""
	}
	may := fmt.Sprintf("%q %s %t", v.who.Name, v.who.Tenant, v.who.AllTenants)
	for _, c := range access.Capabilities() {
		may += fmt.Sprint(" ", v.can(c))
	}
	sum := sha256.Sum256([]byte(may))
	return hex.EncodeToString(sum[:8])
}

// matched is the part of a list's filter that changes are compared with, to find whether a job that is not on the list
// belongs there.
type matched struct {
	Kind     string   `json:"kind,omitempty"`
	Queue    string   `json:"queue,omitempty"`
	Tenant   string   `json:"tenant,omitempty"`
	Statuses []string `json:"statuses,omitempty"`
	// Unsure is set where a change does not contain enough: for conditions other than tailConditions.
	Unsure bool `json:"unsure,omitempty"`
}

// matched returns JSON of what changes are compared with; "" for a part of the list in which no new jobs appear.
func (l listed) matched() string {
	if !l.before.IsZero() {
		return ""
	}
	return l.search.matched()
}

func (f search) matched() string {
	m := matched{Kind: f.kind, Queue: f.queue, Tenant: f.get("tenant")}
	for _, s := range f.statuses {
		m.Statuses = append(m.Statuses, string(s))
	}
	m.Unsure = f.hasOther(tailConditions)
	text, _ := json.Marshal(m) // strings: cannot fail
	return string(text)
}

// rows answers with the present rows of jobs that the browser shows.
func (s *site) rows(v *visit) error {
	var wanted []operator.Wanted
	for text := range strings.SplitSeq(v.param("id"), ",") {
		id, err := outbox.ParseID(text)
		if err != nil {
			return unreadable("id", "is no list of jobs’ ids")
		}
		wanted = append(wanted, operator.Wanted{ID: id, Tenant: v.tenant()})
	}
	if len(wanted) > maxRows {
		return unreadable("id", "has more than "+strconv.Itoa(maxRows)+" jobs")
	}
	found, err := v.operator.Find(v.ctx(), wanted)
	if err != nil {
		return err
	}
	of, err := parseQuery(v.param("of"), v.now.In(v.zone))
	if err != nil {
		return unreadable("of", "is no search of jobs")
	}
	found = slices.DeleteFunc(found, func(j operator.Job) bool { return j.ID.IsZero() })
	return v.render(jobRows(v, found, of, v.param("tenants") != "", v.param("pick") != ""))
}

// streams counts the open streams, in total and per caller.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[callers.Caller]int
}

var errStreams = refusal{
	http.StatusTooManyRequests, "Too many streams are open",
	"Close some tabs, or try again in a moment.",
}

// take takes a place for a stream, unless there are most of them, or own of the caller.
func (s *streams) take(who callers.Caller, most, own int) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= most || s.of[who] >= own {
		return nil, false
	}
	if s.of == nil {
		s.of = map[callers.Caller]int{}
	}
	s.all++
	s.of[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.of[who]--; s.of[who] == 0 {
			delete(s.of, who)
		}
	}, true
}

// events streams the changes of the jobs that the viewer may see, from now on or from a position on. It does not count
// as a page in progress, and the timeout of pages does not apply.
func (s *site) events(v *visit) error {
	var from watch.Position
	if after := v.param("after"); after != "" {
		var err error
		if from, err = watch.ParsePosition(after); err != nil {
			return unreadable("after", "is no position of this stream")
		}
	}
	if from := v.r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" {
		return refusal{
			http.StatusForbidden, "The request came from elsewhere",
			"Only this console's own pages may read the stream.",
		}
	}
	leave, ok := s.streams.take(v.caller(), maxStreams, maxOwn)
	if !ok {
		return errStreams
	}
	defer leave()
	v.leave()
	out, err := watch.NewStream(v.w, v.r, writeTimeout)
	if err != nil {
		return err
	}
	reader, err := s.watch.Changes.Open(v.ctx(), v.tenant(), watch.Filter{Most: maxChanges}, from)
	if err != nil {
		return err
	}
	defer reader.Close()
	acts, err := s.watch.Acts.Open(v.ctx(), v.tenant())
	if err != nil {
		return err
	}
	defer acts.Close()
	ctx, end := s.whileAllowed(v)
	defer end()
	out.Begin(ctx)
	if v.r.Method != http.MethodHead {
		sendAll(out, reader, acts, s.assets.hash)
	}
	return nil
}

// whileAllowed returns a context that ends with the connection, with the server, and when the login is no longer valid.
func (s *site) whileAllowed(v *visit) (context.Context, context.CancelFunc) {
	return watch.WhileAllowed(v.ctx(), v.connection, s.config.Stopping, func(ctx context.Context) bool {
		return s.mayStill(ctx, v)
	})
}

// mayStill reports whether the login still is the principal with which the stream began, and may read it. While the
// database does not answer, the stream goes on.
func (s *site) mayStill(ctx context.Context, v *visit) bool {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	again := &visit{site: s, r: v.r.WithContext(ctx), now: time.Now()}
	if err := s.authenticate(again); err != nil {
		_, refused := errors.AsType[refusal](err)
		return !refused && !errors.Is(err, access.ErrUnauthenticated)
	}
	return v.route.gate.admits(again.who) && again.streamName() == v.streamName()
}

// sendAll sends a reader's batches, and when an operator has acted, until the stream ends. It begins with the build, so
// that pages of another build can announce the new one.
func sendAll(o *watch.Stream, r *watch.Reader, acts *watch.ActsReader, build string) {
	quiet := time.NewTicker(keepAlive)
	defer quiet.Stop()
	var hello bytes.Buffer
	watch.WriteEvent(&hello, "hello", "", struct {
		Build string `json:"build"`
	}{build})
	if !o.Send(hello.Bytes()) {
		return
	}
	var at string
	for {
		select {
		case b, ok := <-r.Batches():
			if !ok { // it reads too slowly
				o.Send(resync("", burst{}))
				return
			}
			r.Took(b)
			moved := at == ""
			text := b.Text
			at = b.After.String()
			if len(text) > maxBurst || b.AtLeast > 0 {
				text = resync(at, burst{b.Len(), b.AtLeast > 0, b.Sample(burstSample)})
			}
			if !o.Send(text) {
				return
			}
			if moved && len(b.Text) == 0 && !o.Send([]byte("id: "+at+"\n\n")) {
				return
			}
		case <-acts.Notified():
			if !o.Send([]byte("event: acted\ndata: {}\n\n")) {
				return
			}
		case <-quiet.C:
			if !o.Send(watch.StillHere(at)) {
				return
			}
		case <-o.Done():
			return
		}
	}
}

// burst describes more changes than are sent at once.
type burst struct {
	Changes int               `json:"changes,omitempty"`
	More    bool              `json:"more,omitempty"` // there are more than Changes
	Sample  []json.RawMessage `json:"sample,omitempty"`
}

// resync returns the event after which a page reads itself again, with its position.
func resync(at string, b burst) []byte {
	var text bytes.Buffer
	watch.WriteEvent(&text, "resync", at, b)
	return text.Bytes()
}
