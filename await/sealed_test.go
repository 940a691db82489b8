package await

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

func ring(t *testing.T, current protect.Key, old ...protect.Key) *protect.Keyring {
	t.Helper()
	r, err := protect.NewKeyring(current, old...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What was sealed for a job of some tenant is read, by Wait and by Result, by those
// who have the key; others get an error that says why.
func TestSealedResultsAreReadByWhoHasTheKey(t *testing.T) {
	t.Parallel()
	lastYears, todays := protect.Key{ID: "2025", Secret: [32]byte{1}}, protect.Key{ID: "2026", Secret: [32]byte{2}}
	old, rotated := ring(t, lastYears), ring(t, todays, lastYears)
	folder, err := protect.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	checks := &protect.ClaimCheck{Store: folder, Above: 1}
	unreadable := func(err error) bool { return errors.Is(err, protect.ErrUnreadable) }
	sealed := func(as string) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*protect.SealedError](err)
			return ok && e.ContentType == as && strings.Contains(err.Error(), e.ID.String())
		}
	}
	for name, c := range map[string]struct {
		seals, opens outbox.Protector // the producer's and the worker's, and the waiter's
		fails        func(error) bool // nil reads it
	}{
		"by today's key":                    {rotated, rotated, nil},
		"by an old key of the ring":         {old, rotated, nil},
		"in a store":                        {checks, checks, nil},
		"nothing was sealed":                {nil, rotated, nil},
		"without the key":                   {rotated, old, unreadable},
		"with another key of the name":      {old, ring(t, protect.Key{ID: "2025", Secret: [32]byte{9}}), unreadable},
		"without a protector":               {rotated, nil, sealed(protect.SealedType)},
		"without a protector, in a store":   {checks, nil, sealed(protect.ClaimCheckType)},
		"with a protector of another kind":  {checks, rotated, sealed(protect.ClaimCheckType)},
		"with another kind, the other way":  {rotated, checks, sealed(protect.SealedType)},
		"nothing was sealed, nothing opens": {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(_ *Waiter, config *Config) { config.Protect = c.opens })
			var use []dispatcher.Middleware
			if c.seals != nil {
				use = append(use, dispatcher.Protect(c.seals))
			}
			work(t, r.db, func(context.Context, *outbox.Job[double]) (doubled, error) { return doubled{7}, nil }, use...)
			r.hears(t)
			ref := enqueue(t, r, r.db, 1, outbox.Options{Tenant: outbox.NewID(), Protect: c.seals})
			check := func(how string, got doubled, err error) {
				if c.fails == nil && (err != nil || got.N != 7) {
					t.Errorf("%s = %v, %v, want 7", how, got, err)
				}
				if c.fails != nil && (err == nil || !c.fails(err) || !strings.Contains(err.Error(), ref.ID.String()) || got.N != 0) {
					t.Errorf("%s = %v, %v, want an error that says why, and of which job", how, got, err)
				}
			}
			a := receive(t, start(ref), "the end of the job")
			check("Wait", a.got, a.err)
			got, err := ref.Result(t.Context())
			check("Result", got, err)
			if plain := ask[bool](t, r.db, `SELECT result = '{"N":7}' FROM outbox.history`); plain == (c.seals != nil) {
				t.Errorf("the result is stored in the clear: %t", plain)
			}
		})
	}
}

// What a protector sealed is never decoded, and tells under which type it was sealed.
func TestASealedResultIsNotDecoded(t *testing.T) {
	t.Parallel()
	id := outbox.NewID()
	const kind = "application/vnd.posthaste.test"
	for name, c := range map[string]struct {
		stored []byte
		sealed string // as
		framed bool
	}{
		"sealed":            {engine.Frame(kind, []byte(`{"N":1}`)), kind, true},
		"cut off":           {engine.Frame(kind, nil)[:len(engine.FrameMagic)+9], "", true},
		"nothing but magic": {[]byte(engine.FrameMagic), "", true},
		"plain":             {[]byte(`{"N":1}`), "", false},
	} {
		_, err := DecodeResult[doubled](id, c.stored)
		e, ok := errors.AsType[*protect.SealedError](err)
		if ok != c.framed || ok && (e.ID != id || e.ContentType != c.sealed) || !ok && err != nil {
			t.Errorf("%s: DecodeResult = %v", name, err)
		}
		if as, _, _ := engine.Unframe(c.stored); as != c.sealed {
			t.Errorf("%s: sealed as %q, want %q", name, as, c.sealed)
		}
	}
	if _, _, framed := engine.Unframe(nil); framed {
		t.Error("no result is sealed")
	}
}
