package kinds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/posthaste-dev/posthaste/outbox"
)

// maxFaults limits the faults reported for one payload.
const maxFaults = 20

// Check validates a payload, for outbox.Options and for the API. It returns nil, or the faults as
// *outbox.InvalidErrors, joined, whose Field is Args and a JSON pointer. It compares numbers exactly; a number of more
// than 1000 digits, or with an exponent beyond 1000, is refused instead.
func (s *Schemas) Check(kindName string, payload outbox.Content) error {
	found, ok := s.find(kindName)
	if !ok {
		return nil
	}
	if contentType, _, err := mime.ParseMediaType(payload.Type); err != nil || contentType != "application/json" {
		return nil
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload.Bytes))
	if err != nil {
		return &outbox.InvalidError{Field: "Args", Reason: "cannot be read as JSON: " + err.Error()}
	}
	if fault := tooLong(parsed, nil); fault != nil {
		return fault
	}
	err = found.compiled.Validate(parsed)
	wrong, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return err
	}
	var faults []error
	note(wrong, func(path []string, reason string) {
		if len(faults) < maxFaults {
			faults = append(faults, &outbox.InvalidError{Field: "Args" + pointer(path), Reason: reason})
		}
	})
	return errors.Join(faults...)
}

// These bound the numbers that are validated against a schema.
const (
	maxNumberBytes = 1000
	maxExponent    = 1000
)

// tooLong finds a number on which a validator, which computes exactly, would spend seconds or fail: 1e999999 has a
// million digits.
func tooLong(v any, path []string) error {
	switch v := v.(type) {
	case json.Number:
		text := v.String()
		i := strings.IndexAny(text, "eE")
		if len(text) <= maxNumberBytes && i < 0 {
			return nil
		}
		if exponent, err := strconv.Atoi(text[i+1:]); len(text) > maxNumberBytes || err != nil ||
			max(exponent, -exponent) > maxExponent {
			return &outbox.InvalidError{
				Field:  "Args" + pointer(path),
				Reason: fmt.Sprintf("is a number of more than %d digits or with a greater exponent", maxNumberBytes),
			}
		}
	case map[string]any:
		for name, member := range v {
			if err := tooLong(member, append(path, name)); err != nil {
				return err
			}
		}
	case []any:
		for i, element := range v {
			if err := tooLong(element, append(path, strconv.Itoa(i))); err != nil {
				return err
			}
		}
	}
	return nil
}

// note reports the faults at the leaves of the tree of errors. A refused choice (anyOf, not, …) counts as one fault,
// rather than one for each alternative.
func note(e *jsonschema.ValidationError, tell func(path []string, reason string)) {
	under := func(name string) []string {
		return append(e.InstanceLocation[:len(e.InstanceLocation):len(e.InstanceLocation)], name)
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range k.Missing {
			tell(under(name), "is missing")
		}
		return
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			tell(under(name), "is not a field")
		}
		return
	case *kind.AnyOf, *kind.OneOf, *kind.Not:
		tell(e.InstanceLocation, e.ErrorKind.LocalizedString(english))
		return
	}
	if len(e.Causes) == 0 {
		tell(e.InstanceLocation, strings.TrimPrefix(e.ErrorKind.LocalizedString(english), "at "))
	}
	for _, cause := range e.Causes {
		note(cause, tell)
	}
}

var english = message.NewPrinter(language.English)

// pointer returns path as a JSON pointer (RFC 6901).
func pointer(path []string) string {
	var text strings.Builder
	for _, name := range path {
		fmt.Fprint(&text, "/", strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return text.String()
}
