package kinds

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/posthaste-dev/posthaste/outbox"
)

// AddType adds the schema of a Go type under the kind that its zero value has.
//
// The schema describes how encoding/json encodes the type: every field is required unless it is omitempty or omitzero,
// and no other field is allowed. What may be nil may be null. Tags add constraints: doc, minimum, maximum,
// minLength, maxLength, pattern, enum, format and the others of github.com/danielgtaylor/huma. A field `_ struct{}
// additionalProperties:"true"` allows other fields, for a kind whose producers are newer than its API.
//
// A type with a MarshalJSON of its own must also be a huma.SchemaProvider, and so must a type with a field whose json
// tag has the option string.
func AddType[T outbox.Args](s *Schemas) error {
	var zero T
	text, err := derive(reflect.TypeFor[T]())
	if err != nil {
		return fmt.Errorf("schema of %T: %w", zero, err)
	}
	return s.Add(zero.Kind(), text)
}

func derive(t reflect.Type) (text []byte, err error) {
	defer func() {
		if v := recover(); v != nil { // huma panics on a wrong tag
			err = fmt.Errorf("derive: %v", v)
		}
	}()
	parts := newRegistry()
	whole := parts.Schema(t, false, t.Name())
	if whole == nil {
		return nil, fmt.Errorf("%s has no form in JSON", t)
	}
	for name, part := range parts.schemas {
		parts.schemas[name] = finish(part)
	}
	top, err := json.Marshal(finish(whole))
	if err != nil {
		return nil, err
	}
	var members map[string]any
	if err := json.Unmarshal(top, &members); err != nil {
		return nil, err
	}
	members["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	if len(parts.schemas) > 0 {
		members["$defs"] = parts.schemas
	}
	return json.Marshal(members)
}
