package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestCheckJSON(t *testing.T) {
	t.Parallel()
	sh := &shape{members: map[string]*shape{"kind": nil, "filter": {members: map[string]*shape{"status": {element: nil}}}}}
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, want := range map[string]struct{ pointer, detail string }{
		`{"kind":{"a~/b":[1,{"x":"\ud83d\ude00 ü\n"}]}}`: {},
		` [1, -0.5e+3 , true,null, "" ,{}] `:             {},
		deep(65):                                         {},
		`{"kind":1,"kind":2}`:                            {"#/kind", "is there twice"},
		`{"kind":1,"\u006bind":2}`:                       {"#/kind", "is there twice"},
		`{"kind":{"a~/b":[0,{"x":1,"x":2}]}}`:            {"#/kind/a~0~1b/1/x", "is there twice"},
		`{"Kind":1}`:                                     {"#/Kind", "is not a field"},
		`{"filter":{"status":[],"tenant":1}}`:            {"#/filter/tenant", "is not a field"},
		`{"kind":"\u0000"}`:                              {"#/kind", "has a NUL"},
		`{"kind":["\ud800"]}`:                            {"#/kind/0", "has a lone surrogate"},
		`{"kind":"\udc00"}`:                              {"#/kind", "has a lone surrogate"},
		`{"kind":"\ud800\ud800"}`:                        {"#/kind", "has a lone surrogate"},
		"{\"kind\":\"\xed\xa0\x80\"}":                    {"#/kind", "is not valid UTF-8"},
		"{\"kind\":\"\xc0\x80\"}":                        {"#/kind", "is not valid UTF-8"},
		"{\"kind\":\"a\tb\"}":                            {"#/kind", "has the control character 0x09"},
		`{"kind":"\x"}`:                                  {"#/kind", "has an escape that JSON does not have"},
		`{"kind":"\u12g4"}`:                              {"#/kind", "has no four hex digits"},
		`{"kind":01}`:                                    {"#", "has \"1\" where a comma or }"},
		`{"kind":+1}`:                                    {"#/kind", "has \"+\" where a value"},
		`{"kind":1.}`:                                    {"#/kind", "has no digit after the point"},
		`{"kind":1e}`:                                    {"#/kind", "has no digit in the exponent"},
		`{"kind":-}`:                                     {"#/kind", "has no number"},
		`{"kind":NaN}`:                                   {"#/kind", "has \"N\" where a value"},
		`{"kind":1,}`:                                    {"#", "has \"}\" where a name"},
		`{"kind":1} x`:                                   {"#", "has \"x\" after the value"},
		`{"kind":`:                                       {"#/kind", "ends where a value"},
		`{"kind":"abc`:                                   {"#/kind", "ends within the string"},
		`{"kind":"abc\`:                                  {"#/kind", "ends within the string"},
		"":                                               {"#", "ends where a value"},
		deep(66):                                         {"#" + strings.Repeat("/0", 65), "is nested deeper than 64"},
		strings.Repeat("[", 1_000_000):                   {"#" + strings.Repeat("/0", 65), "is nested deeper than 64"},
		"\ufeff{}":                                       {"#", "where a value is wanted"},
		`{"kind":"` + "\x7f" + `"}`:                      {},
		`{"kind":{` + manyNames(100, "") + `}}`:          {},
		`{"kind":{` + manyNames(100, "n7") + `}}`:        {"#/kind/n7", "is there twice"},
		`{"kind":{` + manyNames(100, "n99") + `}}`:       {"#/kind/n99", "is there twice"},
	} {
		fault, _ := checkJSON([]byte(text), sh)
		switch {
		case want.detail == "" && fault != nil:
			t.Errorf("%.80s: %+v, want none", text, fault)
		case want.detail != "" && (fault == nil || fault.Pointer != want.pointer || !strings.Contains(fault.Detail, want.detail)):
			t.Errorf("%.80s: %+v, want %s %s", text, fault, want.pointer, want.detail)
		}
	}
}

// A text, a list or a time of a body has the tag empty, or an empty one is known here not to widen what is meant: it
// means something, or is refused otherwise.
func TestEmptyValuesOfBodiesAreThoughtOf(t *testing.T) {
	t.Parallel()
	known := map[string]string{
		"Bulk": "ids reason cursor", "LettersAct": "reason cursor", "ReplayAct": "reason cursor", "NewOperation": "act reason",
		"NewHistoryReplay": "kind reason", "NewReplay": "reason", "EditedReplay": "payloadBase64 reason", "SkippedEvent": "event reason",
		"NewJob":                  "backoffSeconds deadline idempotencyKey key kind onDeath onLapse queue runAt whenFull",
		"CreateScheduleInputBody": "backoffSeconds cron key kind missed name onDeath onLapse queue timeZone",
		"ScheduleFields":          "backoffSeconds cron key kind missed onDeath onLapse queue timeZone",
	}
	s := &server{config: Config{}.withDefaults()}
	spec, err := s.register(http.NewServeMux(), routes)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]bool{}
	for path, item := range spec.Paths {
		if item.Post == nil || item.Post.RequestBody == nil || item.Post.RequestBody.Content["application/json"] == nil {
			continue
		}
		var look func(schema *huma.Schema, sh *shape, body string)
		look = func(schema *huma.Schema, sh *shape, body string) {
			if schema.Ref != "" {
				schema = spec.Components.Schemas.SchemaFromRef(schema.Ref)
			}
			for name, member := range schema.Properties {
				isText := member.Type == huma.TypeString || member.Type == huma.TypeArray
				if isText && sh.members[name].instead == "" && !slices.Contains(strings.Fields(known[body]), name) {
					t.Errorf("%s takes an empty %s of a %s: give it the tag empty if that widens what is meant, else name it in this test", path, name, body)
				}
				if sh.members[name] != nil {
					look(member, sh.members[name], body+"/"+name)
				}
			}
		}
		schema := item.Post.RequestBody.Content["application/json"].Schema
		body := schema.Ref[strings.LastIndex(schema.Ref, "/")+1:]
		bodies[body] = true
		look(schema, bodyShape(spec, item.Post.Metadata["route"].(*entry).route), body)
	}
	for body := range known {
		if !bodies[body] {
			t.Errorf("no route takes a %s", body)
		}
	}
}

// manyNames returns n members, and once more the one that is named.
func manyNames(n int, again string) string {
	var members []string
	for i := range n {
		members = append(members, `"n`+strconv.Itoa(i)+`":1`)
	}
	if again != "" {
		members = append(members, `"`+again+`":2`)
	}
	return strings.Join(members, ",")
}

// What the scan lets pass, encoding/json reads, and writes the same again: nothing
// was replaced, dropped or merged.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":1,"b":[true,null,"\ud83d\ude00"]}`, `{"a":1,"a":2}`, `"\ud800"`, `[1e5,-0.1]`, `{"a":{"":{}}}`, "\"\xff\"", `"\u0000"`, `[[[[]]]]`, ` 1 `, `{}x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if fault, _ := checkJSON(data, nil); fault != nil {
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			t.Fatalf("%q passes and is not JSON", data)
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q passes and cannot be read: %v", data, err)
		}
		if names, kept := countNames(data), countMembers(v); names != kept {
			t.Fatalf("%q has %d names, of which %d were kept", data, names, kept)
		}
		if again, _ := json.Marshal(v); bytes.Contains(again, []byte(`\u0000`)) || bytes.ContainsRune(again, utf8.RuneError) && !bytes.ContainsRune(data, utf8.RuneError) && !bytes.Contains(bytes.ToLower(data), []byte(`\ufffd`)) {
			t.Fatalf("%q became %q", data, again)
		}
	})
}

// countNames counts colons outside of strings.
func countNames(data []byte) (n int) {
	inString := false
	for i := 0; i < len(data); i++ {
		switch {
		case inString && data[i] == '\\':
			i++
		case data[i] == '"':
			inString = !inString
		case !inString && data[i] == ':':
			n++
		}
	}
	return n
}

func countMembers(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			n += 1 + countMembers(member)
		}
	case []any:
		for _, element := range v {
			n += countMembers(element)
		}
	}
	return n
}

func FuzzReadCursor(f *testing.F) {
	f.Add("AQGTWm8OeoV9Po9LASNFZ4mr")
	f.Add("AQGTWm8OeoV9Po9LASNF\nZ4mr")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := readCursor(s); err == nil && (id.IsZero() || makeCursor(id) != s) {
			t.Fatalf("cursor %q reads as %s, which is written %q", s, id, makeCursor(id))
		}
	})
}

var someKey = operator.KeyPlace{KeyName: operator.KeyName{Tenant: outbox.RootTenant, Queue: "mail", Key: "ü/&"}, BlockedSince: time.UnixMicro(1_800_000_000_123_456)}

func TestCursorsSayWhereTheyLead(t *testing.T) {
	t.Parallel()
	never := operator.KeyPlace{KeyName: someKey.KeyName}
	for _, p := range []operator.KeyPlace{someKey, never} {
		if got, err := readKeyCursor(makeKeyCursor(p)); err != nil || got.KeyName != p.KeyName || !got.BlockedSince.Equal(p.BlockedSince) {
			t.Errorf("got %+v, %v; want %+v", got, err, p)
		}
	}
	for _, skip := range []int{0, 1, operator.MaxSkip} {
		id := outbox.NewID()
		if before, left, err := readJobsCursor(makeJobsCursor(operator.JobPage{Next: id, Skip: skip})); err != nil || before != id || left != skip {
			t.Errorf("got %s and %d, %v; want %s and %d", before, left, err, id, skip)
		}
	}
}

// A cursor of any list has one spelling, and names something that there can be.
func FuzzOtherCursors(f *testing.F) {
	for _, seed := range []string{
		"", "AQ", "=", "not of ours", "\n", makeAuditCursor(1), makeAuditCursor(-1), makeAuditCursor(7) + "\n",
		makeLogCursor(operator.LogPosition{Epoch: 3, Line: 5}), makeLogCursor(operator.LogPosition{Epoch: -1, Line: 1}),
		makeActCursor(outbox.RootTenant, time.Unix(1800000000, 0)), makeActCursor(outbox.RootTenant, time.Time{}),
		makeKeyCursor(someKey), makeKeyCursor(operator.KeyPlace{KeyName: someKey.KeyName}), makeKeyCursor(operator.KeyPlace{}),
		makeScheduleCursor(schedulePlace{"ü/&", outbox.RootTenant}), makeScheduleCursor(schedulePlace{"\x00", outbox.RootTenant}), makeScheduleCursor(schedulePlace{}),
		makeJobsCursor(operator.JobPage{Next: outbox.RootTenant, Skip: 10_000}), makeJobsCursor(operator.JobPage{Next: outbox.RootTenant, Skip: 10_001}),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := readAuditCursor(s); err == nil && (id <= 0 || makeAuditCursor(id) != s) {
			t.Errorf("%q reads as the act %d, which is written %q", s, id, makeAuditCursor(id))
		}
		if p, err := readLogCursor(s); err == nil && (p.Epoch < 0 || p.Line < 1 || makeLogCursor(p) != s) {
			t.Errorf("%q reads as the line %+v, which is written %q", s, p, makeLogCursor(p))
		}
		if id, until, err := readActCursor(s); err == nil && (id.IsZero() || until.Year() < 2000 || makeActCursor(id, until) != s) {
			t.Errorf("%q reads as %s until %s, which is written %q", s, id, until, makeActCursor(id, until))
		}
		if p, err := readKeyCursor(s); err == nil && (p.Key == "" || makeKeyCursor(p) != s) {
			t.Errorf("%q reads as %+v, which is written %q", s, p, makeKeyCursor(p))
		}
		if p, err := readScheduleCursor(s); err == nil && (p.name == "" || makeScheduleCursor(p) != s) {
			t.Errorf("%q reads as %+v, which is written %q", s, p, makeScheduleCursor(p))
		}
		if id, skip, err := readJobsCursor(s); err == nil && (id.IsZero() || skip > operator.MaxSkip || makeJobsCursor(operator.JobPage{Next: id, Skip: skip}) != s) {
			t.Errorf("%q reads as %s and %d, which is written %q", s, id, skip, makeJobsCursor(operator.JobPage{Next: id, Skip: skip}))
		}
	})
}

func TestTraceContextIsCarriedIfItIsWellFormed(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for parent, taken := range map[string]bool{
		good:                            true,
		"cc" + good[2:] + "-what-comes": true,
		"ff" + good[2:]:                 false,
		good + "-more":                  false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": false,
		"": false,
		"cc" + good[2:] + "-" + strings.Repeat("x", maxTraceBytes): false,
	} {
		got := traceOf(map[string][]string{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}})
		want := trace{}
		if taken {
			want = trace{parent, "a=1,b=2"}
		}
		if got != want {
			t.Errorf("traceparent %q: got %+v, want %+v", parent, got, want)
		}
	}
}
