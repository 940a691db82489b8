package operator_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A text is looked for in payloads and headers, of open jobs, dead letters and closed ones, byte for byte, and not
// behind the first 64 KiB.
func TestJobsAreListedByWhatTheyContain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, o := t.Context(), operator.New(db)
	enqueue := func(payload string, options outbox.Options) outbox.ID {
		t.Helper()
		id, err := outbox.Enqueue(ctx, db, outbox.Raw{KindName: "k", Payload: []byte(payload)}, options)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	open := enqueue(`{"order":"7f3%_x"}`, outbox.Options{})
	closed := enqueue(`{"order":"7f3%_x","n":2}`, outbox.Options{})
	if _, err := o.Cancel(ctx, closed); err != nil {
		t.Fatal(err)
	}
	headers := enqueue(`{}`, outbox.Options{Headers: map[string]string{"order": "7f3%_x"}})
	bytes, err := outbox.Enqueue(ctx, db, outbox.Raw{KindName: "k", Payload: []byte("\xff 7f3%_x \x00"), ContentType: "application/octet-stream"}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	behind := enqueue(`"`+strings.Repeat("a", 64<<10)+`7f3%_x"`, outbox.Options{})
	enqueue(`{"order":"7F3%_X"}`, outbox.Options{})
	enqueue(`{"order":"7f3abx"}`, outbox.Options{})
	for contains, want := range map[string][]outbox.ID{"7f3%_x": {open, closed, headers, bytes}, "Ä": nil, "aaaa": {behind}} {
		page, err := o.Page(ctx, operator.Filter{Contains: contains})
		if err != nil {
			t.Fatal(err)
		}
		var got []outbox.ID
		for _, j := range page.Jobs {
			got = append(got, j.ID)
		}
		slices.Reverse(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q is in %v, want %v", contains, got, want)
		}
	}
	for _, bad := range []string{strings.Repeat("x", 201), "a\x00b", "\xff"} {
		if _, err := o.Page(ctx, operator.Filter{Contains: bad}); !errors.As(err, new(*outbox.InvalidError)) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// However large the payloads, and however many jobs, a page takes a bounded time and says how far it has looked.
func TestASearchOfPayloadsIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, o := t.Context(), operator.New(db)
	if _, err := db.Exec(ctx, `INSERT INTO outbox.jobs (id, kind, payload)
		SELECT outbox.uuid_v7(), 'k', convert_to(string_agg(md5(random()::text), ''), 'UTF8') FROM generate_series(1, 3000) AS job, generate_series(1, 200) AS part GROUP BY job`); err != nil {
		t.Fatal(err)
	}
	f, parts := operator.Filter{Contains: "not there"}, 0
	for {
		page, err := o.Page(ctx, f)
		if err != nil || len(page.Jobs) > 0 {
			t.Fatalf("%d jobs, %v", len(page.Jobs), err)
		}
		if parts++; page.Next.IsZero() {
			break
		}
		f.Before = page.Next
	}
	if parts < 2 {
		t.Error("20 MB of payloads were searched in one page")
	}
}
