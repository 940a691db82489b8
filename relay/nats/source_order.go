package nats

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// returning is what an ordered source keeps back. A process before us may have been given messages that it did not
// acknowledge. The server sends those again before newer ones, but not before their AckWait has passed:
//
//	before us   1 2 3 delivered, and the process dies; 4 5 published
//	we          4 5 arrive, and are kept back        1 2 3 arrive, and are returned; then 4 5
//
// So newer ones are kept back until as many older ones have come as were outstanding, or AckWait has passed: then the
// others were acknowledged after all.
//
// The server may deliver to a connection that has ended while it does not know that yet, also after we have asked what
// is outstanding. It counts deliveries, so one that we miss is one of these, and outstanding, too.
//
// The nil pointer keeps nothing back.
type returning struct {
	ackWait     time.Duration
	delivery    uint64          // the number of the last one
	newest      uint64          // that was delivered to others
	outstanding int             // of those, how many were not acknowledged
	came        map[uint64]bool // of those
	until       time.Time
	kept        []jetstream.Msg
}

// mostKept is how many messages are kept back. Then nothing is asked for.
const mostKept = 1000

func newReturning(info *jetstream.ConsumerInfo) *returning {
	return &returning{
		ackWait: info.Config.AckWait, delivery: info.Delivered.Consumer, newest: info.Delivered.Stream, outstanding: info.NumAckPending,
		came: map[uint64]bool{}, until: time.Now().Add(info.Config.AckWait),
	}
}

// full reports for how long nothing is to be asked for.
func (r *returning) full() time.Duration {
	if r == nil || len(r.kept) < mostKept || r.over() {
		return 0
	}
	return time.Until(r.until)
}

// released reports whether there is something to return without asking for more.
func (r *returning) released() bool { return r != nil && len(r.kept) > 0 && r.over() }

func (r *returning) over() bool { return len(r.came) >= r.outstanding || !time.Now().Before(r.until) }

// pass returns those of the messages that may be returned.
func (r *returning) pass(messages []jetstream.Msg) (pass []jetstream.Msg) {
	if r == nil {
		return messages
	}
	for _, m := range messages {
		about, err := m.Metadata()
		if err != nil {
			continue // without its place it cannot be acknowledged either
		}
		if missed := int(about.Sequence.Consumer - r.delivery - 1); missed > 0 {
			r.outstanding += missed
			r.newest = max(r.newest, about.Sequence.Stream-1)
			r.until = time.Now().Add(r.ackWait)
		}
		r.delivery = about.Sequence.Consumer
		if about.Sequence.Stream <= r.newest {
			r.came[about.Sequence.Stream] = true
			pass = append(pass, m)
		} else {
			r.kept = append(r.kept, m)
		}
	}
	if r.over() {
		pass, r.kept = append(pass, r.kept...), nil
	}
	return pass
}
