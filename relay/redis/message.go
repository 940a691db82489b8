package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/relay"
)

// These are the fields of an entry before those of the headers.
const (
	fieldID          = "id"
	fieldKey         = "key"
	fieldContentType = "content-type"
	fieldData        = "data"

	escape = "header." // prefix for a header with the name of one of these fields

	ours, theirs = "ce-", "ce_" // prefixes of CloudEvents attributes, here and in Redis

	maxName = 4 << 10 // longest stream name, in bytes; the server accepts more
)

var fields = []string{fieldID, fieldKey, fieldContentType, fieldData}

// encode returns the command that adds a message, and its size. Its error is a [*relay.RefusedError] for messages that
// would end the connection.
func encode(m *relay.Message, create bool, largest int) (command []any, size int, err error) {
	if m.Destination == "" || len(m.Destination) > maxName {
		err := fmt.Errorf("a stream's name has %d bytes, want 1 to %d", len(m.Destination), maxName)
		return nil, 0, &relay.RefusedError{Code: relay.CodeBadDestination, Err: err}
	}
	command = make([]any, 0, 12+2*len(m.Headers))
	command = append(command, "xadd", m.Destination)
	if !create {
		command = append(command, "nomkstream")
	}
	command = append(command, "*", fieldID, m.ID)
	if m.Key != "" {
		command = append(command, fieldKey, m.Key)
	}
	if m.ContentType != "" {
		command = append(command, fieldContentType, m.ContentType)
	}
	command = append(command, fieldData, m.Body)
	size = len(m.Destination) + len(m.ID) + len(m.Key) + len(m.ContentType) + len(m.Body)
	most := max(len(m.ID), len(m.Key), len(m.ContentType), len(m.Body))
	there := make(map[string]bool, len(m.Headers))
	for _, h := range m.Headers {
		name := h.Name
		if attribute, ok := strings.CutPrefix(name, ours); ok {
			name = theirs + attribute
		}
		if slices.Contains(fields, name) {
			name = escape + name
		}
		if there[name] {
			continue // the relay's own come first and take precedence
		}
		there[name] = true
		command = append(command, name, h.Value)
		size += len(name) + len(h.Value)
		most = max(most, len(name), len(h.Value))
	}
	if most > largest {
		err := fmt.Errorf("its body or a header has %d bytes, and proto-max-bulk-len is %d", most, largest)
		return nil, 0, &relay.RefusedError{Code: relay.CodeTooLarge, Err: err}
	}
	return command, size, nil
}

var errNoStream = errors.New("there is no such stream")
