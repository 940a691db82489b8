package nats

import (
	"cmp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// returning puts the messages of an ordered source into the order of the stream. A process before us may have been
// given messages that it did not acknowledge. The server sends those again, but not before their AckWait has passed,
// and one whose AckWait began later comes later:
//
//	before us   1 2 3 delivered, and the process dies; 4 5 published
//	we          4 5 arrive        1 3 arrive        2 arrives; then 1 2 3 4 5 are returned
//
// So everything is kept until as many have come again as were outstanding, and is then returned in order. If AckWait
// and redeliverySlack have passed, those that are missing were acknowledged after all.
//
// The server may deliver to a connection that has ended while it does not know that yet, also after we have asked what
// is outstanding. It counts deliveries, so one that we miss is one of these, and outstanding, too:
//
//	the dead        4       6
//	we                5       7        4 6 arrive; then 4 5 6 7 are returned
//
// What we keep ourselves may be sent to us again, for we do not acknowledge it. It is not one of those that are
// outstanding, and neither is one that we have returned before.
//
// The nil pointer keeps nothing.
type returning struct {
	wait        time.Duration   // for what is outstanding
	delivery    uint64          // the number of the last one
	outstanding int             // how many that others had are still to come
	until       time.Time       // they are waited for
	returned    uint64          // the newest, by its number in the stream
	has         map[uint64]bool // what is kept, by the same
	kept        []place
}

// place is a message and its number in the stream.
type place struct {
	jetstream.Msg
	stream uint64
}

const (
	// redeliverySlack is how much later than AckWait a message may come again: the server notes times in seconds, and
	// has other things to do.
	redeliverySlack = 5 * time.Second

	// mostAckPending is how many unacknowledged messages an ordered source's consumer may have: they may all be kept in
	// memory. The server sends messages again also when it has reached its limit.
	mostAckPending = 10_000
)

func newReturning(info *jetstream.ConsumerInfo) *returning {
	wait := info.Config.AckWait + redeliverySlack
	return &returning{
		wait: wait, delivery: info.Delivered.Consumer, outstanding: info.NumAckPending, until: time.Now().Add(wait), has: map[uint64]bool{},
	}
}

// released reports whether there is something to return without asking for more.
func (r *returning) released() bool { return r != nil && len(r.kept) > 0 && r.over() }

func (r *returning) over() bool { return r.outstanding <= 0 || !time.Now().Before(r.until) }

// pass returns those of the messages that may be returned, and of those that were kept.
func (r *returning) pass(messages []jetstream.Msg) []jetstream.Msg {
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
	pass := make([]jetstream.Msg, len(r.kept))
	for i, m := range r.kept {
		pass[i] = m.Msg
	}
	r.returned = max(r.returned, r.kept[len(r.kept)-1].stream)
	r.outstanding, r.kept = 0, nil
	clear(r.has)
	return pass
}

func (r *returning) keep(m jetstream.Msg) {
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
