package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/relay"
)

const (
	// A run is what is sent before its answers are awaited: at most the size of an atomic batch of JetStream. After an
	// unanswered run the next ones are smaller; otherwise a slow line would never complete any in time.
	maxRun      = 1000
	maxRunBytes = 4 << 20
	minRunBytes = maxRunBytes / 8 / 8
)

// A Sink publishes to the streams of a NATS server or cluster. Its methods may be called concurrently, and wait for
// each other.
type Sink struct {
	relay.Turns

	config     Config
	duplicates atomic.Int64
	remembers  atomic.Int64 // a Duration

	mu       sync.Mutex
	conn     *conn // nil or dead until the next call that needs one
	streams  streams
	runBytes int // size limit of a run
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration. It does not connect: [Sink.Publish] and [Sink.Probe] connect if there is no
// connection, and report an unavailable server.
func Open(config Config) (*Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("open the NATS sink: %w", err)
	}
	return &Sink{config: config, runBytes: maxRunBytes}, nil
}

// Duplicates returns how many messages the server has dropped since Open because it remembered their IDs, as far as it
// reports them: it does not for those in the middle of a fast ingest.
func (s *Sink) Duplicates() int64 { return s.duplicates.Load() }

// Remembers returns the longest duplicate window of the streams that were published to, or 0 before the first message.
func (s *Sink) Remembers() time.Duration { return time.Duration(s.remembers.Load()) }

// Probe connects if there is no connection, and waits for an answer from JetStream.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return err
	}
	defer c.guard(ctx)()
	if err := c.question(ctx, apiInfo, struct{}{}, &struct{}{}); err != nil &&
		!errors.Is(err, nats.ErrPermissionViolation) {
		c.close() // if it was silent, the connection may be dead
		return away(fmt.Errorf("ask JetStream: %w", err))
	}
	return nil
}

// Close closes the connection.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.close()
	}
	return nil
}

// connected returns a connection that is alive, as far as is known. The caller holds the lock.
func (s *Sink) connected(ctx context.Context) (*conn, error) {
	if s.conn != nil && s.conn.alive() {
		return s.conn, nil
	}
	if s.conn != nil {
		s.conn.close()
	}
	s.conn = nil
	c, err := connect(ctx, s.config)
	if err != nil {
		return nil, away(err)
	}
	s.conn = c
	return c, nil
}

// Publish implements [relay.Sink].
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{
		sink: s, batch: batch, outcomes: make([]error, len(batch)), failed: map[string]bool{},
		forbidden: map[string]error{}, unled: map[string]*unledError{},
	}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	if len(batch) == 0 || ctx.Err() != nil {
		return p.outcomes
	}
	c, err := s.connected(ctx)
	if err != nil {
		p.outcomes[0] = err
		return p.outcomes
	}
	defer c.guard(ctx)()
	p.c = c
	p.messages = make([]*nats.Msg, len(batch))
	for rest := p.all(); len(rest) > 0 && !p.over; {
		var groups []group
		groups, rest = p.divide(ctx, rest)
		for _, g := range groups {
			p.send(ctx, g)
		}
	}
	return p.outcomes
}

// publication is one call of Publish.
type publication struct {
	sink     *Sink
	c        *conn
	batch    []relay.Message
	messages []*nats.Msg // the messages once encoded
	outcomes []error     // ErrNotTried until they are known

	failed    map[string]bool        // keys with a message that was not accepted
	forbidden map[string]error       // subjects for which the sink has no permission
	silent    *stream                // nil until nobody answers a question: then for all subjects of unknown streams
	unled     map[string]*unledError // by name, streams that were found to have no leader
	over      bool                   // nothing more is sent: the connection is lost, or ctx has ended
}

// group are messages for one stream, by their indexes in the batch.
type group struct {
	stream *stream
	of     []int
}

func (p *publication) all() []int {
	all := make([]int, len(p.batch))
	for i := range all {
		all[i] = i
	}
	return all
}

// settle stores the outcome of a message.
func (p *publication) settle(i int, err error) {
	p.outcomes[i] = err
	if key := p.batch[i].Key; err != nil && key != "" {
		p.failed[key] = true
	}
}

// broken settles messages that were unanswered when the connection broke or ctx ended: whether they are stored remains
// unknown.
func (p *publication) broken(unknown []int, err error) ([]int, step) {
	for _, i := range unknown {
		p.settle(i, err)
	}
	p.over = true
	p.sink.runBytes = max(p.sink.runBytes/8, minRunBytes)
	return nil, stop
}

// end settles the first of the messages, none of which has been sent, and leaves the others.
func (p *publication) end(unsent []int, err error) {
	p.over = true
	for _, i := range unsent {
		if !p.failed[p.batch[i].Key] {
			p.settle(i, err)
			return
		}
	}
}

// divide takes messages from the front that can be sent to their streams independently, so that no key is in two
// groups. It returns the rest.
func (p *publication) divide(ctx context.Context, from []int) (groups []group, rest []int) {
	of := map[*stream]int{}       // its group
	keys := map[string]*stream{}  // of the messages taken
	known := map[string]*stream{} // of subjects
	for n, i := range from {
		m := &p.batch[i]
		s := known[m.Destination]
		if s == nil {
			var err error
			if s, err = p.streamOf(ctx, m.Destination); err != nil {
				p.end(from, err)
				return nil, nil
			}
			known[m.Destination] = s
		}
		if m.Key != "" {
			if other := keys[m.Key]; other != nil && other != s {
				return groups, from[n:]
			}
			keys[m.Key] = s
		}
		at, ok := of[s]
		if !ok {
			at = len(groups)
			of[s] = at
			groups = append(groups, group{stream: s})
		}
		groups[at].of = append(groups[at].of, i)
	}
	return groups, nil
}

// streamOf returns the stream of a subject. An invalid subject gets a stream of its own, which is never queried and
// gets no messages: its message is refused when its turn comes.
func (p *publication) streamOf(ctx context.Context, subject string) (*stream, error) {
	if checkSubject(subject) != nil {
		return &stream{}, nil
	}
	if p.silent != nil {
		return cmp.Or(p.sink.streams.of(subject), p.silent), nil
	}
	s, err := p.sink.lookUp(ctx, p.c, subject, p.unled)
	if err == nil && s.name == "" && errors.Is(s.refusal, errSilent) {
		p.silent = s
	}
	return s, err
}

// send publishes a group to its stream.
func (p *publication) send(ctx context.Context, g group) {
	one := 0 // how many of the rest go singly
	for rest := g.of; len(rest) > 0 && !p.over && g.stream.refusal == nil; {
		run, after := p.take(rest, g.stream)
		mode := g.stream.mode(len(run))
		if one > 0 {
			mode = byWindow
			one -= len(rest) - len(after)
		}
		left, then := p.sendBy(ctx, mode, g.stream, run)
		if !p.over {
			p.sink.runBytes = min(p.sink.runBytes+p.sink.runBytes/8, maxRunBytes)
		}
		switch then {
		case stop:
			return
		case singly:
			one = len(left)
		}
		rest = append(left, after...)
	}
	if g.stream.refusal != nil && !p.over {
		for _, i := range g.of {
			if !p.failed[p.batch[i].Key] {
				p.settle(i, g.stream.refusal)
			}
		}
	}
}

// step is what to do next with the rest of a run.
type step int

const (
	further step = iota // go on as before
	singly              // send one message of a key at a time, which shows what is wrong
	stop                // the stream accepts nothing more
)

// sendBy sends a run.
func (p *publication) sendBy(ctx context.Context, m mode, s *stream, run []int) (left []int, then step) {
	switch {
	case len(run) == 0:
		return nil, further
	case m == byFastIngest:
		return sendFast(ctx, p, s, run)
	case m == byAtomicBatch:
		return sendAtomic(ctx, p, s, run)
	}
	start := time.Now()
	left, then = sendInWindow(ctx, p, s, run)
	if took := time.Since(start); s.undecided() && len(run) == 1 && p.outcomes[run[0]] == nil {
		if way, err := p.c.roundTrip(ctx); err == nil {
			s.measured(took, way)
		}
	}
	return left, then
}

// take returns the next messages that can be sent in one run, and the messages after them. It settles messages that
// cannot be sent at all.
func (p *publication) take(from []int, s *stream) (run, rest []int) {
	bytes := 0
	for n, i := range from {
		m := &p.batch[i]
		if p.failed[m.Key] {
			continue
		}
		refusal := p.forbidden[m.Destination]
		if refusal == nil {
			p.messages[i], refusal = encode(m)
		}
		bytes += size(m)
		switch full := len(run) == maxRun || bytes > p.sink.runBytes || len(run) == 1 && s.undecided(); {
		case len(run) > 0 && (full || refusal != nil):
			// A refused message may be its key's next after one in the run, whose outcome comes first.
			return run, from[n:]
		case refusal != nil:
			p.settle(i, refusal)
		default:
			run = append(run, i)
		}
	}
	return run, nil
}
