package outbox

import (
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestOptionsThatAreNotAcceptableAreNamedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 513)
	for name, c := range map[string]struct {
		opts Options
		want []InvalidError
	}{
		"a queue that is no name":              {Options{Queue: "mail,"}, []InvalidError{{"Options.Queue", `is "mail,": byte 4 is ",", want ASCII letters, digits and _ . : / -, first a letter or digit`}}},
		"a queue with a first dash":            {Options{Queue: "-m"}, []InvalidError{{"Options.Queue", `is "-m": byte 0 is "-", want ASCII letters, digits and _ . : / -, first a letter or digit`}}},
		"a queue of the relay":                 {Options{Queue: "relay:s"}, []InvalidError{{"Options.Queue", `is "relay:s": queues that begin with relay: are those of messages that a sink has refused`}}},
		"a queue with a NUL":                   {Options{Queue: "m\x00"}, []InvalidError{{"Options.Queue", `is "m\x00": byte 1 is "\x00", want ASCII letters, digits and _ . : / -, first a letter or digit`}}},
		"a queue that is too long":             {Options{Queue: long}, []InvalidError{{"Options.Queue", "is 513 bytes long, want at most 128"}}},
		"too high a priority":                  {Options{Priority: math.MaxInt16 + 1}, []InvalidError{{"Options.Priority", "is 32768, want -32768 to 32767"}}},
		"too low a priority":                   {Options{Priority: math.MinInt}, []InvalidError{{"Options.Priority", "is -9223372036854775808, want -32768 to 32767"}}},
		"a delay into the past":                {Options{Delay: -1}, []InvalidError{{"Options.Delay", "is -1ns, want 0 to 100 years"}}},
		"a delay without end":                  {Options{Delay: math.MaxInt64}, []InvalidError{{"Options.Delay", "is 2562047h47m16.854775807s, want 0 to 100 years"}}},
		"a delay and a time":                   {Options{Delay: 1, RunAt: time.Unix(1, 0)}, []InvalidError{{"Options.RunAt", "excludes Options.Delay; set one of them"}}},
		"a time before computers":              {Options{RunAt: time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)}, []InvalidError{{"Options.RunAt", "is in the year 1969, want 1970 to 9999"}}},
		"a time after the calendar":            {Options{RunAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, []InvalidError{{"Options.RunAt", "is in the year 10000, want 1970 to 9999"}}},
		"after the calendar in UTC":            {Options{RunAt: time.Date(9999, 12, 31, 23, 30, 0, 0, time.FixedZone("", -5*3600))}, []InvalidError{{"Options.RunAt", "is in the year 10000, want 1970 to 9999"}}},
		"a deadline after it in UTC":           {Options{Deadline: time.Date(9999, 12, 31, 23, 30, 0, 0, time.FixedZone("", -5*3600))}, []InvalidError{{"Options.Deadline", "is in the year 10000, want 1970 to 9999"}}},
		"a deadline before computers":          {Options{Deadline: time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)}, []InvalidError{{"Options.Deadline", "is in the year 1969, want 1970 to 9999"}}},
		"a deadline after the calendar":        {Options{Deadline: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, []InvalidError{{"Options.Deadline", "is in the year 10000, want 1970 to 9999"}}},
		"a deadline before its start":          {Options{RunAt: time.Unix(9, 0).UTC(), Deadline: time.Unix(8, 0).UTC()}, []InvalidError{{"Options.Deadline", "is 1970-01-01T00:00:08Z, want it after Options.RunAt, 1970-01-01T00:00:09Z"}}},
		"a deadline at its start":              {Options{RunAt: time.Unix(9, 0).UTC(), Deadline: time.Unix(9, 0).UTC()}, []InvalidError{{"Options.Deadline", "is 1970-01-01T00:00:09Z, want it after Options.RunAt, 1970-01-01T00:00:09Z"}}},
		"attempts below none":                  {Options{MaxAttempts: -1}, []InvalidError{{"Options.MaxAttempts", "is -1, want 1 to 32767, or 0 for 25"}}},
		"attempts without end":                 {Options{MaxAttempts: 32768}, []InvalidError{{"Options.MaxAttempts", "is 32768, want 1 to 32767, or 0 for 25"}}},
		"a timeout below none":                 {Options{Timeout: -time.Second}, []InvalidError{{"Options.Timeout", "is -1s, want 0 to 100 years"}}},
		"a timeout that no clock knows":        {Options{Timeout: 999}, []InvalidError{{"Options.Timeout", "is 999ns, want at least 1µs, or 0 for what the kind's handler says"}}},
		"a backoff without a limit":            {Options{Backoff: Exponential(time.Second, 0)}, []InvalidError{{"Options.Backoff", "waits -1ns after attempt 1, want 0 to 100 years; Exponential needs a limit above zero"}}},
		"a wait below none":                    {Options{Backoff: Backoff{1, -1}}, []InvalidError{{"Options.Backoff", "waits -1ns after attempt 2, want 0 to 100 years"}}},
		"a wait without end":                   {Options{Backoff: Backoff{math.MaxInt64}}, []InvalidError{{"Options.Backoff", "waits 2562047h47m16.854775807s after attempt 1, want 0 to 100 years"}}},
		"too many waits":                       {Options{Backoff: make(Backoff, 65)}, []InvalidError{{"Options.Backoff", "has 65 waits, want at most 64"}}},
		"a key that is too long":               {Options{Key: KeyRules{Name: long}}, []InvalidError{{"Options.Key", "is 513 bytes long, want at most 512"}}},
		"a key with a NUL":                     {Options{Key: KeyRules{Name: "\x00"}}, []InvalidError{{"Options.Key", "has a NUL at byte 0, which Postgres text cannot hold"}}},
		"a key that is not UTF-8":              {Options{Key: KeyRules{Name: "a\xff"}}, []InvalidError{{"Options.Key", "is not valid UTF-8"}}},
		"an idempotency key with a NUL":        {Options{IdempotencyKey: "ab\x00"}, []InvalidError{{"Options.IdempotencyKey", "has a NUL at byte 2, which Postgres text cannot hold"}}},
		"an idempotency key that is too long":  {Options{IdempotencyKey: long}, []InvalidError{{"Options.IdempotencyKey", "is 513 bytes long, want at most 512"}}},
		"an idempotency key that is not UTF-8": {Options{IdempotencyKey: "\xc0"}, []InvalidError{{"Options.IdempotencyKey", "is not valid UTF-8"}}},
		"a header without a name":              {Options{Headers: map[string]string{"": "b"}}, []InvalidError{{"Options.Headers name", "is empty"}}},
		"a header name with a NUL":             {Options{Headers: map[string]string{"a\x00": "b"}}, []InvalidError{{"Options.Headers name", "has a NUL at byte 1, which Postgres text cannot hold"}}},
		"a header name that is not UTF-8":      {Options{Headers: map[string]string{"\xff": "b"}}, []InvalidError{{"Options.Headers name", "is not valid UTF-8"}}},
		"a header value with a NUL":            {Options{Headers: map[string]string{"a": "\x00"}}, []InvalidError{{"Options.Headers[a]", "has a NUL at byte 0, which Postgres text cannot hold"}}},
		"a header value that is not UTF-8":     {Options{Headers: map[string]string{"a": "\xff"}}, []InvalidError{{"Options.Headers[a]", "is not valid UTF-8"}}},
		"headers that are too large":           {Options{Headers: map[string]string{"a": strings.Repeat("x", engine.MaxHeadersBytes)}}, []InvalidError{{"Options.Headers", "are 65544 bytes as JSON, want at most 65536"}}},
		"everything wrong, and all of it is said": {
			Options{Queue: " ", Priority: 1 << 20, Delay: -1, RunAt: time.Unix(-1, 0).UTC(), MaxAttempts: -1, Timeout: -1, Key: KeyRules{Name: "\x00"}, IdempotencyKey: "\xff", Headers: map[string]string{"a": "\x00"}},
			[]InvalidError{
				{"Options.Queue", `is " ": byte 0 is " ", want ASCII letters, digits and _ . : / -, first a letter or digit`},
				{"Options.Priority", "is 1048576, want -32768 to 32767"},
				{"Options.Delay", "is -1ns, want 0 to 100 years"},
				{"Options.RunAt", "excludes Options.Delay; set one of them"},
				{"Options.RunAt", "is in the year 1969, want 1970 to 9999"},
				{"Options.MaxAttempts", "is -1, want 1 to 32767, or 0 for 25"},
				{"Options.Timeout", "is -1ns, want 0 to 100 years"},
				{"Options.Key", "has a NUL at byte 0, which Postgres text cannot hold"},
				{"Options.IdempotencyKey", "is not valid UTF-8"},
				{"Options.Headers[a]", "has a NUL at byte 0, which Postgres text cannot hold"},
				{"Args.Kind()", "is empty, want 1 to 128 characters"},
				{"Raw.Payload", "is not valid JSON: unexpected end of JSON input"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var args Args = greet{"ada"}
			if len(c.want) > 1 {
				args = Raw{}
			}
			id, err := Enqueue(t.Context(), untouched{t: t}, args, c.opts)
			if diff := cmp.Diff(c.want, mistakes(err)); diff != "" || !id.IsZero() {
				t.Errorf("id %s, mistakes (-want +got):\n%s", id, diff)
			}
		})
	}
}

// Every option has a limit that is tried above, or is named here with the reason
// why it has none.
func TestTheLargestAcceptedOptionsCanBeStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, opts := range map[string]Options{
		"the longest names":   {Queue: strings.Repeat("q", engine.MaxNameBytes), Key: KeyRules{Name: strings.Repeat("é", engine.MaxKeyBytes/2)}, IdempotencyKey: strings.Repeat("\x01", engine.MaxKeyBytes)},
		"the largest headers": {Headers: map[string]string{"a": strings.Repeat("x", engine.MaxHeadersBytes-len(`{"a":""}`))}},
		"the latest time":     {RunAt: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), Timeout: engine.MaxDuration},
		"the longest waits":   {Backoff: slices.Repeat(Backoff{engine.MaxDuration}, engine.MaxBackoffs)},
		"any tenant":          {Tenant: ID(slices.Repeat([]byte{0xff}, 16))},
	} {
		counts := []int{2}
		if name == "the longest names" { // COPY has them from the same rows as the others
			counts = append(counts, copyFrom)
		}
		for _, n := range counts {
			if _, err := EnqueueMany(t.Context(), db, slices.Repeat([]Request{{greet{"ada"}, opts}}, n)); err != nil {
				t.Errorf("%s, %d at once: %v", name, n, err)
			}
		}
		opts.IdempotencyKey = ""
		if _, err := Enqueue(t.Context(), db, Raw{KindName: strings.Repeat("k", engine.MaxNameBytes), Payload: []byte("1")}, opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzValidName(f *testing.F) {
	for _, s := range []string{"", "a", "9", "receipt.send", "A9_.:/-", "-a", ".a", "a ", "a\n", "é", "a\x00", "\xff", strings.Repeat("a", 128), strings.Repeat("a", 129)} {
		f.Add(s)
	}
	rule := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}\z`) // as migrations/functions/enqueue.sql has it
	f.Fuzz(func(t *testing.T, s string) {
		if err := validName("Field", s); (err == nil) != rule.MatchString(s) {
			t.Errorf("%q: %v, but the rule says %t", s, err, rule.MatchString(s))
		}
	})
}

// Headers, keys and callers that are accepted are stored as they are; what is refused
// is named.
func FuzzOptions(f *testing.F) {
	for _, seed := range [][5]string{
		{"user", "ada", "order-7", "shop", "ada"},
		{"", "", "", "", ""},
		{"a\x00", "\xff", strings.Repeat("k", 513), "\x00", ""},
		{"\u2028<&>", "\\\"\u007f", "\ufeff", "\xc3", "\xa9"},
		{engine.HeaderUser, "eve", "k", "shop", "ada"},
		{"big", strings.Repeat("v", engine.MaxHeadersBytes), "k", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, name, value, key, service, user string) {
		opts := Options{Headers: map[string]string{name: value}, Key: KeyRules{Name: key}, IdempotencyKey: key, Caller: Caller{Service: service, User: user}}
		job, err := newRow(t.Context(), greet{"ada"}, &opts)
		if err != nil {
			for _, m := range mistakes(err) {
				if m.Reason == "" || !strings.HasPrefix(m.Field, "Options.Headers") && m.Field != "Options.Key" && m.Field != "Options.IdempotencyKey" && m.Field != "Options.Caller" {
					t.Errorf("%+v: mistake %+v", opts, m)
				}
			}
			return
		}
		var headers map[string]string
		if err := json.Unmarshal([]byte(*job.Headers), &headers); err != nil || len(*job.Headers) > engine.MaxHeadersBytes || strings.Contains(*job.Headers, `\u0000`) && !strings.Contains(*job.Headers, `\\u0000`) {
			t.Fatalf("%+v has the headers %s, %v", opts, *job.Headers, err)
		}
		want := engine.Caller(opts.Caller).AddTo(opts.Headers)
		if !maps.Equal(headers, want) || headers[name] != value || key != "" && (job.Key == nil || *job.Key != key) {
			t.Errorf("%+v is stored as %q", opts, headers)
		}
	})
}
