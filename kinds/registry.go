package kinds

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

const definitions = "#/$defs/"

// registry holds the schemas of a type and of the structs within it. It differs from huma's own where that contradicts
// encoding/json: a nil map, a nil []byte and a nil pointer to a struct are null, and an array of bytes is an array.
type registry struct {
	schemas map[string]*huma.Schema
	types   map[string]reflect.Type
}

func newRegistry() *registry {
	return &registry{schemas: map[string]*huma.Schema{}, types: map[string]reflect.Type{}}
}

// Schema returns the schema of a type. A schema that is Nullable may be without a Type; finish gives it another form.
func (r *registry) Schema(t reflect.Type, allowRef bool, hint string) *huma.Schema {
	base, pointer := t, t.Kind() == reflect.Pointer
	for base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	var s *huma.Schema
	switch {
	case encodesItself(base):
		s = huma.SchemaFromType(r, t)
	case base.Kind() == reflect.Struct:
		s = r.object(base, allowRef, huma.DefaultSchemaNamer(t, hint))
	case base.Kind() == reflect.Array && base.Elem().Kind() == reflect.Uint8:
		n := base.Len()
		s = &huma.Schema{Type: huma.TypeArray, Items: r.Schema(base.Elem(), true, ""), MinItems: &n, MaxItems: &n}
	default:
		s = huma.SchemaFromType(r, t)
		pointer = pointer || base.Kind() == reflect.Map || base.Kind() == reflect.Slice
	}
	if s == nil || !pointer || reflect.ValueOf(*s).IsZero() { // of a type that JSON has not, or one that allows all
		return s
	}
	own := *s // a type may return the same schema every time
	own.Nullable = true
	return &own
}

// object returns the schema of a struct, or a reference to it. A name is taken before the fields are looked at, which
// may refer to the struct again.
func (r *registry) object(t reflect.Type, allowRef bool, name string) *huma.Schema {
	for base, n := name, 1; r.types[name] != nil && r.types[name] != t; n++ {
		if t.Name() != "" {
			panic(fmt.Errorf("%s and %s have the same name", t, r.types[name]))
		}
		name = base + strconv.Itoa(n)
	}
	if r.types[name] == nil {
		r.types[name] = t
		r.schemas[name] = huma.SchemaFromType(r, t)
	}
	if allowRef {
		return &huma.Schema{Ref: definitions + name}
	}
	return r.schemas[name]
}

// encodesItself reports whether neither huma nor encoding/json look into the type.
func encodesItself(t reflect.Type) bool {
	if t == reflect.TypeFor[json.RawMessage]() {
		return true
	}
	for _, how := range []reflect.Type{
		reflect.TypeFor[huma.SchemaProvider](), reflect.TypeFor[encoding.TextUnmarshaler](),
	} {
		if t.Implements(how) || reflect.PointerTo(t).Implements(how) {
			return true
		}
	}
	return false
}

// SchemaFromRef returns a schema without a type: from the type of an object huma would conclude that its field cannot
// be null.
func (r *registry) SchemaFromRef(string) *huma.Schema { return &huma.Schema{} }

// TypeFromRef returns the type that a reference of this registry refers to.
func (r *registry) TypeFromRef(ref string) reflect.Type { return r.types[ref[len(definitions):]] }

// Map returns the schemas of the structs.
func (r *registry) Map() map[string]*huma.Schema { return r.schemas }

// RegisterTypeAlias does nothing: no schema has an alias.
func (r *registry) RegisterTypeAlias(_, _ reflect.Type) {}

// finish lets null through where a schema is Nullable and its other parts would refuse it.
func finish(s *huma.Schema) *huma.Schema {
	if s == nil {
		return nil
	}
	for name, property := range s.Properties {
		s.Properties[name] = finish(property)
	}
	if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
		s.AdditionalProperties = finish(values)
	}
	s.Items = finish(s.Items)
	if !s.Nullable {
		return s
	}
	if s.Type == "" || s.Const != nil {
		s.Nullable = false
		either := &huma.Schema{Description: s.Description, AnyOf: []*huma.Schema{s, {Type: "null"}}}
		s.Description = ""
		return either
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, nil) {
		s.Enum = append(slices.Clip(s.Enum), nil)
	}
	return s
}
