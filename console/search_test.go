package console

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestASearchIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]search{
		`payload:"to":"ada"`:            {payload: `"to":"ada"`},
		`payload:"to":"ada lovelace" x`: {payload: `"to":"ada lovelace"`, kind: "x"},
		`payload:"a b" kind:x`:          {payload: "a b", kind: "x"},
		`payload:"\"to\""`:              {payload: `"to"`},
		`payload:"ada"`:                 {payload: "ada"},
		`payload:C:\temp`:               {payload: `C:\temp`},
		`"a kind"`:                      {kind: "a kind"},
		`key:a:b`:                       {key: "a:b"},
		`pending kind:"x"`:              {statuses: []outbox.Status{outbox.Pending}, kind: "x"},
	} {
		f, err := parseSearch(text, time.Now())
		if err != nil || f.text() != want.text() || f.payload != want.payload || f.kind != want.kind || f.key != want.key {
			t.Errorf("%s is %+v, %v; want %+v", text, f, err, want)
		}
	}
	for _, text := range []string{`payload:"to`, `kind:"x" payload:a"b`, `kind:""`, `kind:`} {
		if f, err := parseSearch(text, time.Now()); err == nil {
			t.Errorf("%s is %+v, want an error", text, f)
		}
	}
	value := rapid.StringOfN(rapid.SampledFrom([]rune("ab\"\\: \t\n\r,'ü\u00a0\u2028")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		f := search{
			kind: value.Draw(t, "kind"), queue: value.Draw(t, "queue"), key: value.Draw(t, "key"), fingerprint: value.Draw(t, "error"), payload: value.Draw(t, "payload"),
			statuses: rapid.SliceOfNDistinct(rapid.SampledFrom([]outbox.Status{outbox.Pending, outbox.Dead, outbox.Running}), 0, 3, rapid.ID).Draw(t, "statuses"),
		}
		again, err := parseSearch(f.text(), time.Now())
		if err != nil || again.text() != f.text() || again.kind != f.kind || again.queue != f.queue || again.key != f.key || again.fingerprint != f.fingerprint || again.payload != f.payload {
			t.Fatalf("%+v is written %s, which is %+v, %v", f, f.text(), again, err)
		}
	})
}

// The command below a list has all of its conditions: without one it would list, or act on, others.
func TestTheCommandHasEveryConditionOfTheSearch(t *testing.T) {
	t.Parallel()
	id := outbox.NewID().String()
	values := map[string]string{"status": "dead", "tenant": id, "parent": id, "since": "2w", "until": "2h"}
	at := time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	instants := map[string]string{"since": "2026-01-17T09:00:00Z", "until": "2026-01-31T07:00:00Z"}
	flags := map[string]string{"error": "fingerprint", "payload": "contains", "since": "created-since", "until": "created-until"}
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
