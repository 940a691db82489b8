package outbox

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func FuzzParseID(f *testing.F) {
	for _, s := range []string{
		"", "00000000-0000-0000-0000-000000000001", "01976f0e-7a5c-7d3e-8f4b-0123456789ab", "01976F0E-7A5C-7D3E-8F4B-0123456789AB",
		"01976f0e7a5c7d3e8f4b0123456789ab", "{01976f0e-7a5c-7d3e-8f4b-0123456789ab}", "urn:uuid:01976f0e-7a5c-7d3e-8f4b-0123456789ab",
		"01976f0e-7a5c-7d3e-8f4b-0123456789ag", "01976f0e 7a5c-7d3e-8f4b-0123456789ab", " 1976f0e-7a5c-7d3e-8f4b-0123456789ab", "01976f0e-7a5c-7d3e-8f4b-0123456789a\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if !id.IsZero() {
				t.Errorf("%q: %s with %v", s, id, err)
			}
			return
		}
		if got := id.String(); got != strings.ToLower(s) {
			t.Errorf("%q comes back as %q", s, got)
		}
		var fromJSON ID
		text, err := json.Marshal(id)
		if err == nil {
			err = json.Unmarshal(text, &fromJSON)
		}
		if err != nil || fromJSON != id {
			t.Errorf("%s through JSON is %s, %v", id, fromJSON, err)
		}
	})
}

func TestIDsAreNewAndRise(t *testing.T) {
	t.Parallel()
	const goroutines, each = 8, 2000
	lists := make([][]ID, goroutines)
	before := time.Now().UnixMilli()
	var wg sync.WaitGroup
	for i := range lists {
		next := NewID
		if i%2 == 0 {
			next = newIDRun().next
		}
		wg.Go(func() {
			for range each {
				lists[i] = append(lists[i], next())
			}
			lists[i] = append(lists[i], NewID()) // behind a run that has not come to its end, too
		})
	}
	wg.Wait()
	after := time.Now().UnixMilli()

	seen := map[ID]bool{}
	for _, list := range lists {
		if !slices.IsSortedFunc(list, func(a, b ID) int { return bytes.Compare(a[:], b[:]) }) {
			t.Error("ids of one goroutine do not rise")
		}
		for _, id := range list {
			seen[id] = true
			if version, variant := id[6]>>4, id[8]>>6; version != 7 || variant != 0b10 {
				t.Fatalf("%s is of version %d, variant %b", id, version, variant)
			}
			// Those of a burst rise by a step of a quarter of a microsecond each, and so may
			// run ahead of the clock, together with those of other tests.
			if made := milliseconds(id); made < before || made > after+50 {
				t.Fatalf("%s says %d ms, made between %d and %d", id, made, before, after)
			}
		}
	}
	if want := goroutines * (each + 1); len(seen) != want {
		t.Errorf("%d different ids, want %d", len(seen), want)
	}
}

// Ids of one run share their time: what is behind it, but for the counter's 8 bits, is
// all that keeps them from those of another process in the same quarter of a microsecond.
func TestIDsOfARunShareNothingButTimeAndCounter(t *testing.T) {
	t.Parallel()
	run := newIDRun()
	tails := map[[7]byte]int{}
	for i := range 1000 {
		id := run.next()
		if counter := id[8]<<2 | id[9]>>6; int(counter) != i%256 {
			t.Fatalf("id %d has counter %d", i, counter)
		}
		tails[[7]byte{id[9] & 0x3f, id[10], id[11], id[12], id[13], id[14], id[15]}]++
	}
	if len(tails) != 1000 {
		t.Errorf("%d different tails of 1000 ids", len(tails))
	}
}

// milliseconds returns the time in a UUID of version 7.
func milliseconds(id ID) (ms int64) {
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms
}

func TestIDsTravelThroughPgxAndDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	id := NewID()
	for name, db := range map[string]DB{"pgx": pool, "pgx in a transaction": begin(t, pool, pgx.ReadCommitted)} {
		if got := ask[ID](t, db, `SELECT $1::uuid`, id); got != id {
			t.Errorf("%s: %s came back as %s", name, id, got)
		}
		if got := ask[ID](t, db, `SELECT NULL::uuid`); !got.IsZero() {
			t.Errorf("%s: NULL came back as %s", name, got)
		}
		if got := ask[[]ID](t, db, `SELECT $1::uuid[]`, []ID{id, {}}); !slices.Equal(got, []ID{id, {}}) {
			t.Errorf("%s: an array came back as %s", name, got)
		}
		if got := ask[string](t, db, `SELECT $1::uuid::text`, id); got != id.String() {
			t.Errorf("%s: Postgres writes %s, String %s", name, got, id)
		}
	}

	db := openSQL(t)
	for query, want := range map[string]ID{`SELECT $1::uuid`: id, `SELECT $1::uuid::text`: id, `SELECT nullif($1::uuid, $1)`: {}} {
		got := NewID()
		if err := db.QueryRowContext(t.Context(), query, id).Scan(&got); err != nil || got != want {
			t.Errorf("database/sql: %s = %s, %v; want %s", query, got, err, want)
		}
	}
	var _ sql.Scanner = new(ID)
	if err := new(ID).Scan(7); err == nil || !strings.Contains(err.Error(), "scan id") {
		t.Errorf("a number was scanned: %v", err)
	}
}

func TestTextThatIsNoIDSaysWhatOneLooksLike(t *testing.T) {
	t.Parallel()
	_, err := ParseID("7")
	if got, want := fmt.Sprint(err), `parse id "7": want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var id ID
	if err := json.Unmarshal([]byte(`"7"`), &id); err == nil {
		t.Error("JSON was read")
	}
}
