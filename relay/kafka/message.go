package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
)

const (
	maxTopic = 249 // longest topic name, in bytes

	ours, theirs = "ce-", "ce_" // prefixes of CloudEvents attributes, here and in Kafka

	headerID          = "posthaste-id" // for a message without a ce_id from the relay
	headerContentType = "content-type"

	perBatch, perRecord, perHeader = 128, 64, 12 // upper bounds of the bytes that each adds to its content
)

// encode returns a message in Kafka's form, and an upper bound of its size in a batch.
func encode(m *relay.Message) (*kgo.Record, int) {
	r := &kgo.Record{
		Topic: m.Destination, Value: m.Body, Timestamp: m.At,
		Headers: make([]kgo.RecordHeader, 0, len(m.Headers)+2),
	}
	if r.Value == nil {
		r.Value = []byte{} // nil would be a tombstone, which deletes the key from a compacted topic
	}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	bytes := perRecord + len(r.Key) + len(r.Value)
	add := func(name, value string) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		bytes += perHeader + len(name) + len(value)
	}
	identified := false // by the relay's ce_id, not one from the producer
	there := map[string]bool{headerID: true, headerContentType: m.ContentType != ""}
	for _, h := range m.Headers {
		name := h.Name
		if attribute, ok := strings.CutPrefix(name, ours); ok {
			name = theirs + attribute
		}
		if there[name] {
			continue // the relay's own come first and take precedence, or are added below
		}
		there[name] = true
		identified = identified || name == theirs+"id" && h.Value == m.ID
		add(name, h.Value)
	}
	if !identified {
		add(headerID, m.ID)
	}
	if m.ContentType != "" {
		add(headerContentType, m.ContentType)
	}
	return r, bytes
}

// checkTopic returns what is wrong with a topic's name.
func checkTopic(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q is no name of a topic", name)
	case len(name) > maxTopic:
		return fmt.Errorf("topic %.40q…: a name has at most %d bytes", name, maxTopic)
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Errorf("topic %q: a name has letters, digits, dots, _ and - only; the filter |kafka makes one",
				name)
		}
	}
	return nil
}

// refusal returns why a message need not be sent, given the limit most.
func refusal(m *relay.Message, bytes, most int) error {
	if err := checkTopic(m.Destination); err != nil {
		return &relay.RefusedError{Code: relay.CodeBadDestination, Err: err}
	}
	if bytes+perBatch > most {
		return &relay.RefusedError{Code: relay.CodeTooLarge, Err: fmt.Errorf("it has %d bytes, and MaxBytes is %d",
			bytes, most)}
	}
	for _, h := range m.Headers {
		if h.Name == "" {
			return &relay.RefusedError{Code: relay.CodeRefused, Err: errors.New("a header has no name")}
		}
	}
	return nil
}
