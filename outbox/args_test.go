package outbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// odd is JSON that is valid and not what one expects: what jsonb would refuse or
// rewrite, and what Postgres' own JSON parser could stumble over.
var odd = map[string]string{
	"a NUL as an escape":               `{"a":"\u0000"}`,
	"half a surrogate pair":            `["\ud800", "\udc00\ud800"]`,
	"a whole surrogate pair":           `"\ud83d\ude00"`,
	"blanks and the order of the keys": " {\"b\" : 1,\r\n\t\"a\":2} \n",
	"the same key twice":               `{"a":1,"a":2}`,
	"a number without a type for it":   `[1e400, -0, 12345678901234567890123456789.10]`,
	"an escaped slash and a raw one":   `"\/ / \b\f"`,
	"line and paragraph separators":    "\"\u2028\u2029\u0085\"",
	"the last code point, and DEL":     "\"\U0010ffff\uffff\x7f\"",
	"a byte order mark in a string":    "\"\ufeff\"",
	"null":                             `null`,
	"as deep as Go reads":              strings.Repeat("[", 10000) + strings.Repeat("]", 10000),
	"a backslash that bytea escapes":   `"\\x00 \\000"`,
}

func FuzzRawJSON(f *testing.F) {
	for _, payload := range odd {
		f.Add([]byte(payload))
	}
	for _, bad := range []string{"", " ", "{", `{}{}`, "\xff", "\"\xed\xa0\x80\"", "\"\x00\"", "\ufeff1", "NaN", "01", `"\u12"`, "'a'"} {
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		job, err := newRow(t.Context(), Raw{KindName: "raw", Payload: payload}, &Options{})
		if valid := json.Valid(payload) && bytes.Equal(bytes.ToValidUTF8(payload, nil), payload); (err == nil) != valid {
			t.Fatalf("%q: %v, but valid is %t", payload, err, valid)
		}
		if err != nil {
			for _, m := range mistakes(err) {
				if m.Field != "Raw.Payload" || m.Reason == "" {
					t.Errorf("%q: mistake %+v, want one of Raw.Payload", payload, m)
				}
			}
			return
		}
		if !bytes.Equal(job.Payload, payload) || bytes.IndexByte(payload, 0) >= 0 {
			t.Errorf("%q is stored as %q", payload, job.Payload)
		}
	})
}

// What FuzzRawJSON accepts can be stored, comes back byte for byte, and does not
// spoil the view for people.
func TestOddJSONIsStoredByteForByte(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, payload := range odd {
		t.Run(name, func(t *testing.T) {
			raw := Raw{KindName: "raw", Payload: []byte(payload)}
			ids := storeBothWays(t, db, raw)
			for _, id := range ids {
				got := ask[[]byte](t, db, `SELECT payload FROM outbox.jobs WHERE id = $1`, id)
				if !bytes.Equal(got, raw.Payload) {
					t.Errorf("stored %q, want %q", got, payload)
				}
				if got := ask[string](t, db, `SELECT payload::text FROM outbox.open_jobs WHERE id = $1`, id); got != payload {
					t.Errorf("the view shows %q, want %q", got, payload)
				}
			}
		})
	}
}

func TestOtherBytesAreStoredByteForByte(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	every := make([]byte, 512)
	for i := range every {
		every[i] = byte(i)
	}
	for name, payload := range map[string][]byte{
		"every byte":            every,
		"protobuf":              {0x08, 0x96, 0x01, 0x12, 0x00, 0xff, 0xfe},
		"NULs":                  make([]byte, 3),
		"what looks like bytea": []byte(`\x6162`),
		"half a code point":     []byte("\xe2\x82"),
		"nothing":               nil,
		"the most":              bytes.Repeat([]byte{0xff}, engine.MaxPayloadBytes),
	} {
		t.Run(name, func(t *testing.T) {
			for _, id := range storeBothWays(t, db, Raw{KindName: "raw", Payload: payload, ContentType: "application/x-protobuf"}) {
				if got := ask[[]byte](t, db, `SELECT payload FROM outbox.jobs WHERE id = $1`, id); !bytes.Equal(got, payload) {
					t.Errorf("stored %d bytes %.20q, want %d bytes %.20q", len(got), got, len(payload), payload)
				}
				if got := ask[int](t, db, `SELECT payload_bytes FROM outbox.open_jobs WHERE id = $1 AND payload IS NULL`, id); got != len(payload) {
					t.Errorf("the view says %d bytes, want %d", got, len(payload))
				}
			}
		})
	}
}

// storeBothWays stores a job by Enqueue and by the arrays of EnqueueMany; COPY
// has its own test.
func storeBothWays(t *testing.T, db DB, args Args) []ID {
	t.Helper()
	id, err := Enqueue(t.Context(), db, args, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := EnqueueMany(t.Context(), db, []Request{{Args: args}})
	if err != nil {
		t.Fatal(err)
	}
	return append(ids, id)
}

// A row that no producer of ours made must not hide all others.
func TestTheViewShowsWhatItCannotDecodeAsNull(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload) VALUES (gen_random_uuid(), 'odd', '\xff'), (gen_random_uuid(), 'odd', '{')`)
	if got := ask[int](t, db, `SELECT count(*) FROM outbox.open_jobs WHERE payload IS NULL`); got != 2 {
		t.Errorf("got %d rows, want 2", got)
	}
}

func TestAPointerToRawIsRaw(t *testing.T) {
	t.Parallel()
	job, err := newRow(t.Context(), &Raw{KindName: "raw", Payload: []byte("\xff"), ContentType: "x/y"}, &Options{})
	if err != nil || string(job.Payload) != "\xff" || job.ContentType != "x/y" {
		t.Errorf("stores %q as %s, %v; want the bytes as they are", job.Payload, job.ContentType, err)
	}
}

// message passes JSON on as it is, which encoding/json checks only in part.
type message struct{ Body json.RawMessage }

func (message) Kind() string { return "message" }

type unencodable struct{ C chan int }

func (unencodable) Kind() string { return "unencodable" }

func TestArgsThatCannotBeStoredAreNamedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", engine.MaxPayloadBytes)
	for name, c := range map[string]struct {
		args Args
		want InvalidError
	}{
		"nothing":                 {nil, InvalidError{"Args", "is nil"}},
		"no JSON for it":          {unencodable{}, InvalidError{"Args", "cannot be encoded as JSON: json: unsupported type: chan int"}},
		"text that is not UTF-8":  {message{json.RawMessage("\"\xff\"")}, InvalidError{"Args", "are not valid UTF-8 as JSON"}},
		"too large":               {greet{long}, InvalidError{"Args", "are 4194315 bytes, want at most 4194304; store large data elsewhere and enqueue a reference"}},
		"too large as it is":      {Raw{"raw", []byte(long + "x"), "text/plain"}, InvalidError{"Args", "are 4194305 bytes, want at most 4194304; store large data elsewhere and enqueue a reference"}},
		"an empty payload":        {Raw{KindName: "raw"}, InvalidError{"Raw.Payload", "is not valid JSON: unexpected end of JSON input"}},
		"half a JSON value":       {Raw{KindName: "raw", Payload: []byte(`{"a"`)}, InvalidError{"Raw.Payload", "is not valid JSON: unexpected end of JSON input"}},
		"two JSON values":         {Raw{KindName: "raw", Payload: []byte(`1 2`)}, InvalidError{"Raw.Payload", "is not valid JSON: invalid character '2' after top-level value"}},
		"a NUL in JSON":           {Raw{KindName: "raw", Payload: []byte("\"\x00\"")}, InvalidError{"Raw.Payload", `is not valid JSON: invalid character '\x00' in string literal`}},
		"JSON that is not UTF-8":  {Raw{KindName: "raw", Payload: []byte("\"\xff\"")}, InvalidError{"Raw.Payload", "is not valid UTF-8, so not JSON"}},
		"a content type with NUL": {Raw{"raw", nil, "a\x00"}, InvalidError{"Raw.ContentType", "has a NUL at byte 1, which Postgres text cannot hold"}},
		"a long content type":     {Raw{"raw", nil, strings.Repeat("a", 129)}, InvalidError{"Raw.ContentType", "is 129 bytes long, want at most 128"}},
		"no kind":                 {Raw{"", []byte("1"), ""}, InvalidError{"Args.Kind()", "is empty, want 1 to 128 characters"}},
		"a kind that is no name":  {Raw{"a b", []byte("1"), ""}, InvalidError{"Args.Kind()", `is "a b": byte 1 is " ", want ASCII letters, digits and _ . : / -, first a letter or digit`}},
		"a kind of the relay":     {Raw{"relay:s", []byte("1"), ""}, InvalidError{"Args.Kind()", `is "relay:s": kinds that begin with relay: are those of messages that a sink has refused`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := Enqueue(t.Context(), untouched{t: t}, c.args, Options{})
			if diff := cmp.Diff([]InvalidError{c.want}, mistakes(err)); diff != "" || !id.IsZero() {
				t.Errorf("id %s, mistakes (-want +got):\n%s", id, diff)
			}
			if err != nil && !strings.Contains(err.Error(), c.want.Field+" "+c.want.Reason) {
				t.Errorf("the text %q leaves the mistake out", err)
			}
		})
	}
}
