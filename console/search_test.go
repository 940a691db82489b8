package console

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestASearchIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]search{
		`payload:"to":"ada"`:             {payload: `"to":"ada"`},
		`payload:"to":"ada lovelace" x`:  {payload: `"to":"ada lovelace"`, kind: "x"},
		`payload:"a b" kind:x`:           {payload: "a b", kind: "x"},
		`payload:"\"to\""`:               {payload: `"to"`},
		`payload:"ada"`:                  {payload: "ada"},
		`payload:C:\temp`:                {payload: `C:\temp`},
		`"a kind"`:                       {kind: "a kind"},
		`key:a:b`:                        {key: "a:b"},
		`pending kind:"x"`:               {statuses: []outbox.Status{outbox.Pending}, kind: "x"},
		`error:smtp`:                     {code: "smtp"},
		`error:0123456789abcdef`:         {fingerprint: "0123456789abcdef"},
		`id:01976F0E-7a`:                 {idPrefix: "01976f0e-7a"},
		`id:01976f0e…cdef`:               {idPrefix: "01976f0e"},
		`tenant:root worker:w attempt:3`: {tenant: outbox.RootTenant, worker: "w", minAttempt: 3},
	} {
		f, err := parseSearch(text, time.Now())
		if err != nil || f.text() != want.text() || f.payload != want.payload || f.kind != want.kind || f.key != want.key {
			t.Errorf("%s is %+v, %v; want %+v", text, f, err, want)
		}
	}
	for _, text := range []string{
		`payload:"to`, `kind:"x" payload:a"b`, `kind:""`, `kind:`, `attempt:0`, `attempt:x`, `id:xyz`, `since:soon`,
		`parent:00000000-0000-0000-0000-000000000000`, `tenant:0a000000…0001`,
	} {
		if f, err := parseSearch(text, time.Now()); err == nil {
			t.Errorf("%s is %+v, want an error", text, f)
		}
	}
	value := rapid.StringOfN(rapid.SampledFrom([]rune("ab\"\\: \t\n\r,'ü\u00a0\u2028")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		f := search{
			kind: value.Draw(t, "kind"), queue: value.Draw(t, "queue"), key: value.Draw(t, "key"), code: value.Draw(t, "code"), payload: value.Draw(t, "payload"),
			fingerprint: rapid.StringMatching(`|[0-9a-f]{16}`).Draw(t, "error"), worker: value.Draw(t, "worker"), minAttempt: rapid.IntRange(0, 3).Draw(t, "attempt"),
			statuses: rapid.SliceOfNDistinct(rapid.SampledFrom([]outbox.Status{outbox.Pending, outbox.Dead, outbox.Running}), 0, 3, rapid.ID).Draw(t, "statuses"),
		}
		again, err := parseSearch(f.text(), time.Now())
		if err != nil || again.text() != f.text() || again.kind != f.kind || again.queue != f.queue || again.key != f.key || again.fingerprint != f.fingerprint || again.payload != f.payload ||
			again.code != f.code || again.worker != f.worker || again.minAttempt != f.minAttempt {
			t.Fatalf("%+v is written %s, which is %+v, %v", f, f.text(), again, err)
		}
	})
}

// The command below a list has all of its conditions: without one it would list, or act on, others.
func TestTheCommandHasEveryConditionOfTheSearch(t *testing.T) {
	t.Parallel()
	id := outbox.NewID().String()
	values := map[string]string{
		"status": "dead", "tenant": id, "parent": id, "since": "2w", "until": "2h", "error": "0123456789abcdef",
		"attempt": "3", "id_prefix": "01976f0e", "finished_since": "2w", "finished_until": "2h",
	}
	at := time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	instants := map[string]string{"since": "2026-01-17T09:00:00Z", "until": "2026-01-31T07:00:00Z"}
	instants["finished_since"], instants["finished_until"] = instants["since"], instants["until"]
	flags := map[string]string{
		"error": "fingerprint", "payload": "contains", "since": "created-since", "until": "created-until", "code": "error-code",
		"attempt": "min-attempt", "id_prefix": "id-prefix", "finished_since": "finished-since", "finished_until": "finished-until",
	}
	for _, page := range []string{"", "live"} {
		for _, name := range names {
			f, value := search{page: page}, cmp.Or(values[name], "a b")
			if err := f.set(name, value, at); err != nil {
				t.Fatal(err)
			}
			value = cmp.Or(instants[name], value) // which means the same however much later somebody runs it
			if line, want := f.command(), " --"+cmp.Or(flags[name], name)+" "+shellQuoted(value); !strings.HasSuffix(line, want) {
				t.Errorf("%s: the command is %s, want one that ends with %s", name, line, want)
			}
		}
	}
}

// What an act on many says is also true where only a part of them was looked at.
func TestCountsOfAPartSaySo(t *testing.T) {
	t.Parallel()
	parts := []operator.LetterPart{{Jobs: 9_999}, {Jobs: 1}}
	if got := lateWords(parts, 10_000); !strings.HasPrefix(got, "None has a deadline that has passed") {
		t.Errorf("of all: %s", got)
	}
	if got := lateWords(parts, 10_001); strings.Contains(got, "None") || !strings.HasPrefix(got, "Of the 10") {
		t.Errorf("of a part: %s", got)
	}
	some := letters{groups: []operator.DeadLetterGroup{{Jobs: 2}, {Jobs: 3}}}
	if got := some.total(); got != "5 in 2 groups" {
		t.Errorf("the total of some groups is %q", got)
	}
	if got := (letters{groups: make([]operator.DeadLetterGroup, maxGroups)}).total(); got != "at least 0 in 100 groups" {
		t.Errorf("the total of as many groups as are shown is %q", got)
	}
}

// A condition that the engine learns is one of the console, too.
func TestEachConditionOfTheEngineIsOneOfTheSearch(t *testing.T) {
	t.Parallel()
	id := outbox.NewID().String()
	values := map[string]string{
		"status": "dead", "tenant": id, "parent": id, "since": "2w", "until": "2h", "error": "0123456789abcdef",
		"attempt": "3", "id_prefix": "01976f0e", "finished_since": "2w", "finished_until": "2h",
	}
	v := &visit{who: access.Principal{AllTenants: true, Capabilities: map[access.Capability]bool{access.AdminRead: true, access.PayloadRead: true}}}
	var f search
	for _, name := range names {
		if err := f.set(name, cmp.Or(values[name], "x"), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	filter, err := v.filter(f)
	if err != nil {
		t.Fatal(err)
	}
	for field, value := range reflect.ValueOf(filter).Fields() {
		if part := strings.Fields("Limit Before After Skip"); value.IsZero() && !slices.Contains(part, field.Name) {
			t.Errorf("no condition of the search sets operator.Filter.%s", field.Name)
		}
	}
}
