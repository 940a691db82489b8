package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	lookEvery   = 500 * time.Millisecond // for changes, while somebody listens
	lookBudget  = 10                     // of the time between two looks, one part is looking: a large table is looked at less often
	maxChanges  = 20_000                 // of one look; more are not told one by one
	lookTimeout = 12 * time.Second
	maxBatches  = 64      // that wait for a reader
	maxWaiting  = 4 << 20 // bytes of them, unless it is one
)

// hub looks for changes of jobs on behalf of everybody who listens in this process,
// one tenant after the other, and not at all while nobody does. It looks through
// transactions that are tied to the tenant, so a reader cannot be told of others.
//
// Between two looks a job may change several times: its last state is told. A look
// misses nothing, whatever commits late; see operator.Changes.
type hub struct {
	pool outbox.Beginner

	every      time.Duration
	maxChanges int
	maxWaiting int64

	complain func(context.Context, error)

	mu      sync.Mutex
	feeds   map[outbox.ID]*feed
	running bool
	nudged  chan struct{} // one slot: somebody came or went
}

// feed is what the readers of one tenant share; the zero tenant is all of them.
type feed struct {
	tenant  outbox.ID
	readers map[*reader]bool
	joining []*reader

	// Of the hub's goroutine alone.
	position operator.Position // zero: it has not begun
	told     [2]map[outbox.ID]state
}

// state is what was told of a job.
type state struct {
	status outbox.Status
	epoch  int64
}

// reader is one stream. Batches are shared with the other readers of its feed.
type reader struct {
	from    operator.Position // zero: from now on
	begun   chan error        // of one: nil once it has its first batch
	batches chan *batch       // closed when the reader was too slow
	waiting atomic.Int64      // bytes in batches
}

// batch is what one look found.
type batch struct {
	text  []byte            // events as they are sent; the last has the position as its id
	after operator.Position // of the reader when it has all of it
}

func newHub(s *server) *hub {
	return &hub{
		pool: s.config.Pool, every: s.config.lookEvery, maxChanges: s.config.maxChanges, maxWaiting: int64(s.config.maxWaiting),
		complain: func(ctx context.Context, err error) { _ = s.explain(ctx, err) },
		feeds:    map[outbox.ID]*feed{}, nudged: make(chan struct{}, 1),
	}
}

// join begins to read. The first batch says where the reader is.
func (h *hub) join(tenant outbox.ID, from operator.Position) *reader {
	r := &reader{from: from, begun: make(chan error, 1), batches: make(chan *batch, maxBatches)}
	h.mu.Lock()
	f := h.feeds[tenant]
	if f == nil {
		f = &feed{tenant: tenant, readers: map[*reader]bool{}}
		h.feeds[tenant] = f
	}
	f.joining = append(f.joining, r)
	start := !h.running
	h.running = true
	h.mu.Unlock()
	if start {
		go h.run()
	}
	h.nudge()
	return r
}

// leave ends reading.
func (h *hub) leave(tenant outbox.ID, r *reader) {
	h.mu.Lock()
	if f := h.feeds[tenant]; f != nil {
		delete(f.readers, r)
		f.joining = slices.DeleteFunc(f.joining, func(other *reader) bool { return other == r })
		if len(f.readers)+len(f.joining) == 0 {
			delete(h.feeds, tenant)
		}
	}
	h.mu.Unlock()
	h.nudge()
}

func (h *hub) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// run looks until nobody listens. It decides that, and that it ends, under one lock:
// who comes later starts another.
func (h *hub) run() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		h.mu.Lock()
		if len(h.feeds) == 0 {
			h.running = false
			h.mu.Unlock()
			return
		}
		feeds := make([]*feed, 0, len(h.feeds))
		for _, f := range h.feeds {
			feeds = append(feeds, f)
		}
		h.mu.Unlock()
		begun := time.Now()
		for _, f := range feeds {
			h.serve(f)
		}
		pause.Reset(max(h.every, lookBudget*time.Since(begun)))
		h.rest(pause.C)
	}
}

// rest waits for the next look, or for a reader who comes, or for the last who goes.
func (h *hub) rest(over <-chan time.Time) {
	for {
		select {
		case <-over:
			return
		case <-h.nudged:
			h.mu.Lock()
			due := len(h.feeds) == 0
			for _, f := range h.feeds {
				due = due || len(f.joining) > 0 && f.position.IsZero()
			}
			h.mu.Unlock()
			if due {
				return
			}
		}
	}
}

// serve looks once for a feed. Who joins with a position of his own is told what has
// changed since, after the look and before the next one: nothing can be told to him
// after something newer.
func (h *hub) serve(f *feed) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	found, err := h.look(ctx, f)
	if err != nil {
		h.complain(ctx, err)
	}
	h.mu.Lock()
	for r := range f.readers {
		if found != nil && !r.give(found, h.maxWaiting) {
			delete(f.readers, r)
			close(r.batches)
		}
	}
	joining := slices.Clone(f.joining)
	h.mu.Unlock()
	for _, r := range joining {
		first, err := &batch{after: f.position}, err
		if err == nil && !r.from.IsZero() {
			first, err = h.catchUp(ctx, f, r.from)
		}
		h.mu.Lock()
		if i := slices.Index(f.joining, r); i >= 0 { // he has not gone
			f.joining = slices.Delete(f.joining, i, i+1)
			if err == nil {
				f.readers[r] = true
				r.batches <- first // there is room
				r.waiting.Add(int64(len(first.text)))
			}
			r.begun <- err
		}
		h.mu.Unlock()
	}
}

// give hands a batch over, unless the reader has too much of them to read.
func (r *reader) give(b *batch, most int64) bool {
	if len(b.text) == 0 && len(r.batches) > 0 {
		return true // where it is, a later one says
	}
	size, waiting := int64(len(b.text)), r.waiting.Load()
	if waiting > 0 && waiting+size > most {
		return false
	}
	select {
	case r.batches <- b:
		r.waiting.Add(size)
		return true
	default:
		return false
	}
}

// took notes that a batch was taken from the reader's.
func (r *reader) took(b *batch) { r.waiting.Add(-int64(len(b.text))) }

// look is one look of a feed, from where it is.
func (h *hub) look(ctx context.Context, f *feed) (*batch, error) {
	if f.position.IsZero() {
		return nil, h.begin(ctx, f)
	}
	changes, after, more, err := h.changes(ctx, f.tenant, f.position)
	lost := errors.Is(err, operator.ErrPositionLost)
	if lost {
		err = h.begin(ctx, f)
		after = f.position
	}
	if err != nil {
		return nil, err
	}
	f.position = after
	if lost || more {
		f.told = [2]map[outbox.ID]state{}
		return resync(after), nil
	}
	return &batch{text: eventsOf(f.tenant, f.news(changes, h.maxChanges), after), after: after}, nil
}

func (h *hub) begin(ctx context.Context, f *feed) error {
	return h.inTx(ctx, f.tenant, func(tx pgx.Tx) (err error) {
		f.position, err = operator.Now(ctx, tx)
		return err
	})
}

// catchUp is what has changed since a position that a client brought.
func (h *hub) catchUp(ctx context.Context, f *feed, from operator.Position) (*batch, error) {
	changes, _, more, err := h.changes(ctx, f.tenant, from)
	if more || errors.Is(err, operator.ErrPositionLost) {
		return resync(f.position), nil
	}
	if err != nil {
		return nil, err
	}
	// The feed is behind what was just read, not ahead: its next batch begins there.
	return &batch{text: eventsOf(f.tenant, changes, f.position), after: f.position}, nil
}

func (h *hub) changes(ctx context.Context, tenant outbox.ID, from operator.Position) (changes []operator.Change, after operator.Position, more bool, err error) {
	err = h.inTx(ctx, tenant, func(tx pgx.Tx) (err error) {
		changes, after, more, err = operator.Changes(ctx, tx, tenant, from, h.maxChanges)
		return err
	})
	return changes, after, more, err
}

// inTx runs fn under the row-level security of the tenant.
func (h *hub) inTx(ctx context.Context, tenant outbox.ID, fn func(pgx.Tx) error) error {
	return access.InTx(ctx, h.pool, access.Principal{Tenant: tenant, AllTenants: tenant.IsZero()}, fn)
}

// news leaves out what was told already: looks overlap, and an extended lease is
// found again. What is forgotten is told twice.
func (f *feed) news(changes []operator.Change, remembered int) []operator.Change {
	if f.told[0] == nil || len(f.told[0]) > remembered {
		f.told = [2]map[outbox.ID]state{{}, f.told[0]}
	}
	news := changes[:0]
	for _, c := range changes {
		now := state{c.Status, c.Epoch}
		before, known := f.told[0][c.ID]
		if !known {
			before, known = f.told[1][c.ID]
		}
		f.told[0][c.ID] = now
		if !known || before != now {
			news = append(news, c)
		}
	}
	return news
}

// JobEvent is what GET /events tells of a job: what it is now.
type JobEvent struct {
	ID         string    `json:"id" format:"uuid"`
	Tenant     string    `json:"tenant,omitempty" format:"uuid" doc:"For tokens of all tenants"`
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status"`
	Epoch      int64     `json:"epoch" doc:"Rises with every attempt and whatever ends one"`
	Attempt    int       `json:"attempt"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	Error      *JobError `json:"error,omitempty" doc:"Of the latest failed attempt"`
}

// eventsOf is the changes as they are sent. Only the last has an id: whoever loses the
// connection within begins before all of them again.
func eventsOf(tenant outbox.ID, changes []operator.Change, after operator.Position) []byte {
	var text bytes.Buffer
	for i, c := range changes {
		e := JobEvent{
			ID: c.ID.String(), Kind: c.Kind, Queue: c.Queue, Status: c.Status.String(), Epoch: c.Epoch, Attempt: c.Attempt, FinishedAt: utc(c.FinishedAt),
		}
		if tenant.IsZero() {
			e.Tenant = c.Tenant.String()
		}
		if c.ErrorCode != "" {
			e.Error = &JobError{Code: c.ErrorCode}
		}
		id := ""
		if i == len(changes)-1 {
			id = after.String()
		}
		writeEvent(&text, "job", id, e)
	}
	return text.Bytes()
}

func resync(after operator.Position) *batch {
	var text bytes.Buffer
	writeEvent(&text, "resync", after.String(), struct{}{})
	return &batch{text: text.Bytes(), after: after}
}

// writeEvent writes a server-sent event. JSON has no line breaks of its own.
func writeEvent(to *bytes.Buffer, name, id string, data any) {
	to.WriteString("event: " + name + "\n")
	if id != "" {
		to.WriteString("id: " + id + "\n")
	}
	to.WriteString("data: ")
	_ = json.NewEncoder(to).Encode(data) // a struct of ours, into memory; ends the line
	to.WriteByte('\n')
}
