package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// request is a request for messages of a consumer. The server sends up to as many, and then nothing or a note that says
// why there are no more. Only the server sets the subject for a message's acknowledgement, so this tells messages from
// notes. A header does not: the publisher of a message may set the one that notes have.
type request struct {
	subscription *nats.Subscription
	came         chan *nats.Msg
	left         int       // how many messages are still to come; 0 if the request has ended
	until        time.Time // the server ends it before
	err          error     // why it has ended; nil if that is no failure
}

// pull requests messages.
func (s *Source) pull(most int) error {
	came := make(chan *nats.Msg, 2*most)
	inbox := s.nc.NewInbox()
	subscription, err := s.nc.ChanSubscribe(inbox, came)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"batch": most, "expires": pullWait, "max_bytes": max(maxPullBytes, 2*s.nc.MaxPayload()),
	})
	if err != nil {
		return err
	}
	s.request = request{subscription: subscription, came: came, left: most, until: time.Now().Add(pullWait + pullSlack)}
	return s.nc.PublishRequest(api+"CONSUMER.MSG.NEXT."+s.of.Stream+"."+s.of.Consumer, inbox, body)
}

// arrived waits for a message, and returns those that have arrived, up to most. If the request's time is over, as after
// the bridge has waited for its queue, the server is silent only if nothing has arrived a little later.
func (s *Source) arrived(ctx context.Context, most int) ([]*nats.Msg, error) {
	r := &s.request
	if r.left == 0 {
		err := r.err
		if err == nil {
			err = s.pull(most)
		}
		if err != nil {
			return nil, s.lost(err)
		}
	}
	overdue := time.NewTimer(max(time.Until(r.until), pullSlack))
	defer overdue.Stop()
	select {
	case m := <-r.came:
		messages := r.collect(m, most)
		if len(messages) == 0 && r.err != nil {
			return nil, s.lost(r.err)
		}
		return messages, nil
	case <-ctx.Done():
		return nil, nil
	case <-s.closed:
		return nil, s.lost(nats.ErrConnectionClosed)
	case <-overdue.C:
		return nil, s.lost(errSilent)
	}
}

// collect returns a message and those that have arrived behind it, up to most. It ends the request if none is to come.
func (r *request) collect(m *nats.Msg, most int) (messages []*nats.Msg) {
	for {
		if _, err := m.Metadata(); err != nil { // a note
			r.left, r.err = 0, failure(m)
		} else {
			messages = append(messages, m)
			r.left--
		}
		if r.left == 0 {
			_ = r.subscription.Unsubscribe() // or the connection is gone
			r.came = nil                     // a note may come even so
			return messages
		}
		if len(messages) == most {
			return messages
		}
		select {
		case m = <-r.came:
		default:
			return messages
		}
	}
}

// failure returns why the server has ended a request; nil if its time is over, or its messages have as many bytes as
// were requested.
func failure(note *nats.Msg) error {
	status, reason := note.Header.Get("Status"), note.Header.Get("Description")
	switch {
	case status == "404", status == "408", strings.Contains(strings.ToLower(reason), "exceeds maxbytes"),
		strings.EqualFold(reason, "batch completed"):
		return nil
	case noResponders(note):
		return nats.ErrNoResponders
	}
	return fmt.Errorf("the server has ended the request: %s %s", status, reason)
}
