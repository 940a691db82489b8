package nats

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/cloudevents"
)

const (
	headerID          = "Nats-Msg-Id"
	headerContentType = "Content-Type"

	// attribute begins the names of CloudEvents attributes. A message with the first of them is in the binary mode.
	attribute       = cloudevents.Prefix
	attributeFirst  = attribute + "specversion"
	attributeOfType = attribute + "datacontenttype"

	// reserved begins the names of headers by which a client makes the server purge, expire, schedule or refuse
	// messages. A producer of events must not use them.
	reserved = "Nats-"

	// maxSubject leaves room for the answer's subject in a line of the protocol, which is limited to 4096 bytes by
	// default: a longer line ends the connection.
	maxSubject = 3000
)

// encode returns a message in the form of NATS. Its error is a [*relay.RefusedError] for messages that the server would
// refuse without an answer.
func encode(m *relay.Message) (*nats.Msg, error) {
	if err := checkSubject(m.Destination); err != nil {
		return nil, &relay.RefusedError{Code: relay.CodeBadDestination, Err: err}
	}
	values := make([]string, 0, len(m.Headers)+3) // one for each header
	header := make(nats.Header, len(m.Headers)+3)
	set := func(name, value string) {
		if header[name] != nil {
			return // the relay's own come first and take precedence
		}
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if m.ID != "" {
		set(headerID, m.ID)
	}
	if m.ContentType != "" {
		set(headerContentType, m.ContentType)
	}
	for _, h := range m.Headers {
		if strings.HasPrefix(h.Name, attribute) {
			h.Value = cloudevents.Escape(h.Value)
		}
		err := checkHeader(h)
		if h.Name == "Status" && len(m.Body) == 0 {
			err = errors.New("header Status: without a body, clients take such a message for a note of the server's")
		}
		if err != nil {
			return nil, &relay.RefusedError{Code: relay.CodeRefused, Err: err}
		}
		set(h.Name, h.Value)
		if h.Name == attributeFirst && m.ContentType != "" {
			// The NATS binding puts it here, others in Content-Type.
			set(attributeOfType, cloudevents.Escape(m.ContentType))
		}
	}
	if strings.ContainsAny(m.ID+m.ContentType, "\r\n\x00") {
		return nil, &relay.RefusedError{
			Code: relay.CodeRefused,
			Err:  errors.New("the message's ID or content type has a line break in it"),
		}
	}
	return &nats.Msg{Subject: m.Destination, Header: header, Data: m.Body}, nil
}

func checkHeader(h relay.Header) error {
	if len(h.Name) >= len(reserved) && strings.EqualFold(h.Name[:len(reserved)], reserved) {
		return fmt.Errorf("header %q: names that begin with %s are the server's", h.Name, reserved)
	}
	if strings.ContainsAny(h.Value, "\r\n\x00") {
		return fmt.Errorf("header %q: a value has no line breaks and no NUL", h.Name) // nats.go would send spaces
	}
	return nil // nats.go itself reports names that it cannot send
}

// checkSubject returns what is wrong with a subject to publish to.
func checkSubject(subject string) error {
	switch {
	case subject == "":
		return errors.New("the subject is empty")
	case len(subject) > maxSubject:
		return fmt.Errorf("the subject has %d bytes, and at most %d are sent", len(subject), maxSubject)
	case subject[0] == '$' || strings.HasPrefix(subject, "_INBOX."):
		return fmt.Errorf("subject %q: names that begin with $ or _INBOX are the server's", subject)
	}
	for _, c := range []byte(subject) {
		if c <= ' ' || c == 0x7f {
			return fmt.Errorf("subject %q has a space or control character", subject)
		}
	}
	for token := range strings.SplitSeq(subject, ".") {
		switch token {
		case "":
			return fmt.Errorf("subject %q has an empty token", subject)
		case "*", ">":
			return fmt.Errorf("subject %q has a wildcard", subject)
		}
	}
	return nil
}

// size returns what a message counts for in a run.
func size(m *relay.Message) int {
	n := len(m.Destination) + len(m.ID) + len(m.ContentType) + len(m.Body)
	for _, h := range m.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}
