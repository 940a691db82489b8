package kinds

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A payload of a few bytes must not keep a processor busy: the validator computes
// exactly, and panics where big.Rat gives up.
func TestNumbersThatNobodyCountsAreRefused(t *testing.T) {
	t.Parallel()
	var s Schemas
	if err := s.Add("k", []byte(`{"properties": {"n": {"type": "number", "minimum": 1, "multipleOf": 0.5}, "i": {"type": "integer"}, "u": {"uniqueItems": true}}}`)); err != nil {
		t.Fatal(err)
	}
	many := strings.TrimSuffix(strings.Repeat("1e999999,", 30), ",")
	for payload, field := range map[string]string{
		`{"n":1e1000001}`:                           "Args/n",
		`{"n":1e-1000001}`:                          "Args/n",
		`{"i":1E+999999}`:                           "Args/i",
		`{"i":1e99999999999999999999}`:              "Args/i",
		`{"u":[` + many + `]}`:                      "Args/u/0",
		`{"a/b":{"c":[0,1e-99999]}}`:                "Args/a~1b/c/1",
		`{"n":` + strings.Repeat("7", 1001) + `}`:   "Args/n",
		`{"n":0.` + strings.Repeat("0", 999) + `1}`: "Args/n",
	} {
		err := s.Check("k", outbox.Content{Type: "application/json", Bytes: []byte(payload)})
		if found, ok := errors.AsType[*outbox.InvalidError](err); !ok || found.Field != field {
			t.Errorf("%.80s: %v, want a fault at %s", payload, err, field)
		}
	}
	for _, payload := range []string{`{"n":1e308,"i":1.5e1}`, `{"i":` + strings.Repeat("7", 1000) + `}`, `{"n":1E2}`, `{"n":"1e9999999"}`} {
		if err := s.Check("k", outbox.Content{Type: "application/json", Bytes: []byte(payload)}); payload[5] != '"' && err != nil {
			t.Errorf("%.80s: %v, want it to pass", payload, err)
		}
	}
}

// A schema is compiled or refused, whatever it says, and what it finds wrong with a
// payload it finds at a place that the payload has, or that it misses there.
func FuzzCheck(f *testing.F) {
	const receipt = `{"type":"object","required":["a"],"properties":{"a":{"type":"integer","minimum":0},"b":{"type":"array","items":{"$ref":"#/$defs/x"},"uniqueItems":true}},"additionalProperties":false,"$defs":{"x":{"enum":[1,"1",null]}}}`
	for _, seed := range [][2]string{
		{receipt, `{"a":1,"b":[1,"1",null]}`},
		{receipt, `{"a":-1.5,"b":[1,1.0],"c/~d":{}}`},
		{receipt, `{"a":1e400,"b":[1e-5]}`},
		{receipt, `{"a":1e1000001}`},
		{`{"$ref":"#"}`, `1`},
		{`{"anyOf":[{"$ref":"#"},{"not":{"$ref":"#"}}]}`, `[]`},
		{`{"$dynamicRef":"#x","$dynamicAnchor":"x"}`, `{}`},
		{`{"pattern":"^(a+)+$","format":"email","minLength":3}`, `"aaaaaaaaaaaaaaaaaaaaaaaaaaaa!"`},
		{`{"pattern":"(?=a)"}`, `"a"`},
		{`{"format":"date-time"}`, `"2026-02-30T25:61:61Z"`},
		{`{"multipleOf":0.01,"maximum":1e3}`, `0.015`},
		{`{"multipleOf":0}`, `1`},
		{`{"multipleOf":1e999999}`, `1`},
		{`{"minimum":1e1000001}`, `1`},
		{`{"prefixItems":[true,false],"unevaluatedItems":false,"contains":{"const":1},"minContains":2}`, `[1,2,3]`},
		{`{"if":{"type":"string"},"then":{"maxLength":1},"else":{"dependentRequired":{"a":["b"]}}}`, `{"a":1}`},
		{`{"patternProperties":{"^x":{"type":"null"}},"propertyNames":{"maxLength":2},"unevaluatedProperties":false}`, `{"xyz":1,"":2}`},
		{`{"$schema":"http://json-schema.org/draft-04/schema#","exclusiveMinimum":true,"minimum":1}`, `1`},
		{`{"$schema":"https://example.org/none","$ref":"file:///etc/passwd"}`, `1`},
		{`{"$id":"http://x/","$ref":"y"}`, `1`},
		{`true`, ``},
		{`false`, `null`},
		{`1`, `{`},
		{``, `1 2`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		began := time.Now()
		var s Schemas
		if err := s.Add("k", schema); err != nil {
			return
		}
		err := s.Check("k", outbox.Content{Type: "application/json", Bytes: payload})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%q of %q takes %s", payload, schema, took)
		}
		if err == nil {
			if !json.Valid(payload) {
				t.Errorf("%q passes %q", payload, schema)
			}
			return
		}
		var whole any
		_ = json.Unmarshal(payload, &whole)
		faults := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			faults = joined.Unwrap()
		}
		if len(faults) > maxFaults {
			t.Errorf("%q of %q has %d faults", payload, schema, len(faults))
		}
		for _, fault := range faults {
			found, ok := errors.AsType[*outbox.InvalidError](fault)
			if !ok || found.Reason == "" || !strings.HasPrefix(found.Field, "Args") || json.Valid(payload) && !hasPlace(whole, strings.TrimPrefix(found.Field, "Args")) {
				t.Errorf("%q of %q: %v", payload, schema, fault)
			}
		}
	})
}

// hasPlace reports whether a pointer leads to a value, or to a member that an object
// may lack.
func hasPlace(v any, pointer string) bool {
	if pointer == "" {
		return true
	}
	name, rest, more := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
	if more {
		rest = "/" + rest
	}
	switch v := v.(type) {
	case map[string]any:
		member, ok := v[name]
		return !ok && rest == "" || ok && hasPlace(member, rest)
	case []any:
		i, err := strconv.Atoi(name)
		return err == nil && i >= 0 && i < len(v) && hasPlace(v[i], rest)
	}
	return false
}
