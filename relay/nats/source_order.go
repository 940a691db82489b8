package nats

import (
	"cmp"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// returning puts the messages of an ordered source into the order of the stream. A previous process may have received
// messages that it did not acknowledge. The server sends those again, but not before their AckWait has passed, and one
// whose AckWait began later comes later:
//
//	before us   1 2 3 delivered, and the process dies; 4 5 published
//	we          4 5 arrive        1 3 arrive        2 arrives; then 1 2 3 4 5 are returned
//
// So all messages are kept until as many have come again as were outstanding, and are then returned in order. If
// AckWait and redeliverySlack have passed, the missing ones were acknowledged after all.
//
// As long as the server does not know that a connection has ended, it may deliver to it, even after we have asked what
// is outstanding. The server counts deliveries, so a delivery that we miss is such a one, and is outstanding, too:
//
//	the dead        4       6
//	we                5       7        4 6 arrive; then 4 5 6 7 are returned
//
// The server may send messages that we keep again, because we do not acknowledge them. Those do not count as
// outstanding, and neither do messages that were returned before.
//
// The nil pointer keeps nothing.
type returning struct {
	wait        time.Duration   // how long to wait for outstanding messages
	delivery    uint64          // number of the last delivery
	outstanding int             // how many messages that others received are still to come
	until       time.Time       // when waiting for them ends
	returned    uint64          // the newest returned message, by its number in the stream
	has         map[uint64]bool // the kept messages, by the same
	kept        []place
}

// place is a message with its number in the stream.
type place struct {
	*nats.Msg
	stream uint64
}

const (
	// redeliverySlack is how much later than AckWait a message may come again: the server records times in seconds, and
	// has other work.
	redeliverySlack = 5 * time.Second

	// mostAckPending limits the unacknowledged messages of an ordered source's consumer, because all of them may be
	// kept in memory. The server redelivers messages even when the limit is reached.
	mostAckPending = 10_000
)

func newReturning(info *jetstream.ConsumerInfo) *returning {
	wait := info.Config.AckWait + redeliverySlack
	return &returning{
		wait: wait, delivery: info.Delivered.Consumer, outstanding: info.NumAckPending, until: time.Now().Add(wait),
		has: map[uint64]bool{},
	}
}

// released reports whether messages can be returned without requesting more.
func (r *returning) released() bool { return r != nil && len(r.kept) > 0 && r.over() }

func (r *returning) over() bool { return r.outstanding <= 0 || !time.Now().Before(r.until) }

// pass returns up to most of the new and the kept messages, if they may be returned. The rest is kept, and returned
// before more is requested.
func (r *returning) pass(messages []*nats.Msg, most int) []*nats.Msg {
	if r == nil {
		return messages
	}
	for _, m := range messages {
		r.keep(m)
	}
	if !r.over() || len(r.kept) == 0 {
		return nil
	}
	slices.SortFunc(r.kept, func(a, b place) int { return cmp.Compare(a.stream, b.stream) })
	pass := make([]*nats.Msg, min(len(r.kept), most))
	for i, m := range r.kept[:len(pass)] {
		pass[i] = m.Msg
		r.returned = max(r.returned, m.stream)
		delete(r.has, m.stream)
	}
	r.outstanding, r.kept = 0, r.kept[len(pass):]
	return pass
}

func (r *returning) keep(m *nats.Msg) {
	about, err := m.Metadata()
	if err != nil {
		return // without its place it cannot be acknowledged either
	}
	if missed := int(about.Sequence.Consumer - r.delivery - 1); missed > 0 {
		r.outstanding += missed
		r.until = time.Now().Add(r.wait)
	}
	r.delivery = about.Sequence.Consumer
	stream := about.Sequence.Stream
	if r.has[stream] {
		return // to acknowledge the first is enough
	}
	r.has[stream] = true
	r.kept = append(r.kept, place{m, stream})
	if about.NumDelivered > 1 && stream > r.returned {
		r.outstanding--
	}
}
