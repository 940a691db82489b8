package verify

import (
	"math"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// request is something that a producer enqueues.
type request struct {
	name    string
	args    outbox.Args
	options outbox.Options
}

// jsonOf returns a request with a payload that is already JSON.
func jsonOf(name, payload string) request {
	return request{name: name, args: outbox.Raw{KindName: probe.EchoKind, Payload: []byte(payload)}}
}

func rawOf(name, contentType string, payload []byte) request {
	return request{name: name, args: outbox.Raw{KindName: probe.EchoKind, Payload: payload, ContentType: contentType}}
}

func with(name string, options outbox.Options) request {
	return request{name: name, args: outbox.Raw{KindName: probe.EchoKind, Payload: []byte(`{}`)}, options: options}
}

// oddText is valid but unusual text.
var oddText = map[string]string{
	"emoji and combining": "👩‍👩‍👧‍👦 e\u0301 \u202eright to left\u202c",
	"noncharacters":       "\uffff\ufffe\U0010ffff\ufdd0\ufeff",
	"controls":            "\x01\x02\t\r\n\x1b[31m\x7f\u0085\u2028",
	"quotes and slashes":  `'; DROP TABLE outbox.jobs; -- "\'\\$1 %s {} $$`,
	"only spaces":         "   ",
}

// acceptable returns requests that must be stored, and delivered unchanged.
func acceptable() []request {
	const mib = 1 << 20
	all := []request{
		jsonOf("escaped NUL", `{"a\u0000b":"\u0000"}`),
		jsonOf("lone surrogates", `["\ud800","\udfff\ud800","\udbff"]`),
		jsonOf("surrogate pair, escaped", `"\ud83d\ude00"`),
		jsonOf("string of 1 MiB", `"`+strings.Repeat("é", mib/2)+`"`),
		jsonOf("largest payload", `"`+strings.Repeat("x", engine.MaxPayloadBytes-2)+`"`),
		jsonOf("nesting of 10,000", strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)),
		jsonOf("int64 edges", `[9223372036854775807,-9223372036854775808,18446744073709551615,-0]`),
		jsonOf("numbers that no type holds", `[1e400,-1e-400,`+strings.Repeat("9", 10_000)+`]`),
		jsonOf("a key twice", `{"a":1,"a":2}`),
		jsonOf("odd white space", " \t\r\n{ \"b\" : 1 ,\n\"a\":2}\n"),
		jsonOf("null", `null`),
		rawOf("no bytes", "application/octet-stream", nil),
		rawOf("every byte", "application/octet-stream", everyByte()),
		rawOf("NULs", "application/octet-stream", make([]byte, 1000)),
		rawOf("UTF-16", "text/plain; charset=utf-16", []byte{0xff, 0xfe, 0x00, 0xd8}),
		rawOf("NaN that is no JSON", "text/plain", []byte("NaN")),
		with("extremes", outbox.Options{
			Priority: math.MaxInt16, MaxAttempts: math.MaxInt16,
			Timeout: 100 * 365 * 24 * time.Hour,
		}),
		with("other extremes", outbox.Options{
			Priority: math.MinInt16, Timeout: time.Hour,
			RunAt: time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		}),
		with("longest key", outbox.Options{
			Key:            outbox.KeyRules{Name: strings.Repeat("k", engine.MaxKeyBytes)},
			IdempotencyKey: strings.Repeat("é", engine.MaxKeyBytes/2),
		}),
		with("large headers", outbox.Options{Headers: map[string]string{"h": strings.Repeat("x", 65_000), " ": ""}}),
		with("another tenant", outbox.Options{Tenant: outbox.ID([]byte(strings.Repeat("\xff", 16)))}),
	}
	for name, text := range oddText {
		all = append(all,
			rawOf("payload of "+name, "text/plain", []byte(text)),
			with("keys of "+name, outbox.Options{
				Key: outbox.KeyRules{Name: text}, IdempotencyKey: text,
				Headers: map[string]string{text: text},
			}))
	}
	return all
}

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// notANumber cannot be encoded as JSON.
type notANumber struct{ F float64 }

func (notANumber) Kind() string { return probe.EchoKind }

// unacceptable returns requests that must be refused, with an error that says what is wrong.
func unacceptable() []request {
	kind := func(name, kind string) request {
		return request{name: name, args: outbox.Raw{KindName: kind, Payload: []byte(`{}`)}}
	}
	all := []request{
		{name: "NaN", args: notANumber{math.NaN()}},
		{name: "infinity", args: notANumber{math.Inf(1)}},
		jsonOf("NaN as JSON", `{"a":NaN}`),
		jsonOf("JSON that is not UTF-8", "\"\xed\xa0\x80\""),
		jsonOf("a NUL in JSON", "\"a\x00b\""),
		jsonOf("no bytes as JSON", ``),
		jsonOf("JSON with a byte order mark", "\ufeff{}"),
		jsonOf("nesting that is too deep to check", strings.Repeat("[", 10_001)+strings.Repeat("]", 10_001)),
		jsonOf("too large a payload", `"`+strings.Repeat("x", engine.MaxPayloadBytes)+`"`),
		rawOf("a NUL in the content type", "text/\x00", []byte("x")),
		kind("no kind", ""), kind("a NUL in the kind", "a\x00"), kind("an odd kind", "é"),
		kind("too long a kind", strings.Repeat("k", 129)),
		with("year 294276", outbox.Options{RunAt: time.Date(294276, 12, 31, 23, 59, 59, 0, time.UTC)}),
		with("year 10000", outbox.Options{RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}),
		with("before Christ", outbox.Options{RunAt: time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC)}),
		with("the end of Go's time", outbox.Options{RunAt: time.Unix(math.MaxInt64, 0)}),
		with("the longest delay", outbox.Options{Delay: math.MaxInt64}),
		with("a delay below zero", outbox.Options{Delay: math.MinInt64}),
		with("the longest timeout", outbox.Options{Timeout: math.MaxInt64}),
		with("too high a priority", outbox.Options{Priority: math.MaxInt64}),
		with("too low a priority", outbox.Options{Priority: math.MinInt64}),
		with("too many attempts", outbox.Options{MaxAttempts: math.MaxInt64}),
		with("attempts below zero", outbox.Options{MaxAttempts: math.MinInt64}),
		with("an odd queue", outbox.Options{Queue: "a b"}),
		with("too long a key", outbox.Options{Key: outbox.KeyRules{Name: strings.Repeat("k", engine.MaxKeyBytes+1)}}),
		with("a header without a name", outbox.Options{Headers: map[string]string{"": "x"}}),
		with("too large headers",
			outbox.Options{Headers: map[string]string{"h": strings.Repeat("x", engine.MaxHeadersBytes)}}),
	}
	for name, text := range map[string]string{
		"NUL": "a\x00b", "a lone surrogate": "\xed\xa0\x80",
		"an overlong form": "\xc0\x80",
	} {
		all = append(all,
			with("key with "+name, outbox.Options{Key: outbox.KeyRules{Name: text}}),
			with("idempotency key with "+name, outbox.Options{IdempotencyKey: text}),
			with("header with "+name, outbox.Options{Headers: map[string]string{"h": text}}),
			with("header name with "+name, outbox.Options{Headers: map[string]string{text: "h"}}))
	}
	return all
}

// Columns of a row whose worker is long gone, for the reaper.
const (
	lapsed = `payload, status, attempt, epoch, lease_owner, lease_expires_at, `
	leased = `'{}', 'running', 1, 1, repeat(E'\n', 5000), '4714-11-24 00:00:00+00 BC', `
)

// oddColumns are rows that only plain SQL can store.
var oddColumns = []struct{ names, values string }{
	{`payload, content_type`, `'\x', 'application/json'`},
	{`payload, content_type`, `'\xff00fe', 'application/json'`},
	{`payload, content_type`, `'{}', ''`},
	{`payload, content_type`, `'{}', repeat('é', 1000)`},
	{`payload, headers`, `'{}', '[1]'`},
	{`payload, headers`, `'{}', 'null'`},
	{`payload, headers`, `'{}', '{"a": [1], "b": null}'`},
	{`payload, key`, `'{}', repeat(E'\U0001F600\n', 5000)`},
	{`payload`, `convert_to(repeat('x', 5000000), 'UTF8')`},
	{`payload, run_at`, `'{}', '4714-11-24 00:00:00+00 BC'`},
	{`payload, run_at`, `'{}', '294276-12-31 23:59:59.999999+00'`},
	{`payload, run_at`, `'{}', 'infinity'`},
	{`payload, run_at`, `'{}', '-infinity'`},
	{`payload, created_at`, `'{}', '294276-12-31 23:59:59.999999+00'`},
	{`payload, created_at`, `'{}', '4714-11-24 00:00:00+00 BC'`},
	{`payload, timeout`, `'{}', '178000000 years'`},
	{`payload, timeout`, `'{}', '-178000000 years'`},
	{`payload, timeout`, `'{}', '0'`},
	{`payload, max_attempts`, `'{}', 2147483647`},
	{`payload, lost_leases`, `'{}', 2147483647`},
	{`payload, attempt`, `'{}', 2147483647`},
	{`payload, epoch`, `'{}', 9223372036854775807`},
	{`payload, tenant_id`, `'{}', 'ffffffff-ffff-ffff-ffff-ffffffffffff'`},
	{`payload, last_error_code, last_error_message`, `'{}', repeat('c', 100000), repeat('m', 1000000)`},
	{`payload, priority`, `'{}', -32768`},
	{lapsed + `started_at`, leased + `now()`},
	{lapsed + `started_at`, leased + `NULL`},
	{lapsed + `started_at, max_attempts`, leased + `now(), 2147483647`},
	{lapsed + `started_at, lost_leases`, leased + `now(), 2147483647`},
	{lapsed + `started_at, run_at`, leased + `'294276-12-31 23:59:59.999999+00', '4714-11-24 00:00:00+00 BC'`},
}
