package relay

import (
	"bytes"
	"encoding/json"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// What is read without a decoder is what the decoder reads.
func TestHeadersAreWhatTheDecoderReads(t *testing.T) {
	same := func(t interface {
		Errorf(format string, args ...any)
	}, object string,
	) (plain bool) {
		got, plain := parsePlain(object)
		var want map[string]string
		if err := json.Unmarshal([]byte(object), &want); plain && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("%s: %q, want %q, %v", object, got, want, err)
		}
		return plain
	}
	for object, want := range map[string]bool{
		`{"a": "b"}`: true, `{"a": "b", "c": "ünï, {\": \""}`: false, `{"a": "b, c: d", "e": ""}`: true, `{"": "b"}`: true,
		`{}`: false, `null`: false, `{"a": 1}`: false, `{"a": 1, "b": "c"}`: false, `{"a": "x", "b": 1, "c": "d"}`: false,
		`{"a": {"b": "c"}}`: false, `{"a": {"b": "c"}, "d": "e"}`: false, `{"a": ["b", "c"], "d": "e"}`: false, `{"a": ["x"], "d": "e"}`: false,
		`{"a": null, "b": "c"}`: false, `{"a": "\n"}`: false, "{\"a\": \"\xff\"}": false, `["a", "b"]`: false, `{"a": true, "b": "c"}`: false,
	} {
		if got := same(t, object); got != want {
			t.Errorf("%s is read without a decoder: %t, want %t", object, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Map(rapid.String(), func(s string) any { return s }), rapid.Just[any](1), rapid.Just[any](nil), rapid.Just[any]([]string{"a", "b"}))
		headers := rapid.MapOf(rapid.StringMatching(`[a-z:", {}é]{0,4}`), value).Draw(t, "headers")
		var object bytes.Buffer // as jsonb is printed, with a space behind colons and commas
		object.WriteByte('{')
		for name, value := range headers {
			if object.Len() > 1 {
				object.WriteString(", ")
			}
			key, _ := json.Marshal(name)
			text, _ := json.Marshal(value)
			object.Write(bytes.Join([][]byte{key, text}, []byte(": ")))
		}
		object.WriteByte('}')
		same(t, object.String())
	})
}
