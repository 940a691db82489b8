package protect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

func key(id string, first byte) Key { return Key{ID: id, Secret: [32]byte{first, 1, 2}} }

func ring(t testing.TB, current Key, old ...Key) *Keyring {
	t.Helper()
	r, err := NewKeyring(current, old...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	here  = outbox.Part{Tenant: outbox.RootTenant, Job: outbox.NewID(), Column: "payload"}
	plain = outbox.Content{Type: "application/json", Bytes: []byte(`{"iban":"DE02 1203 0000 0000 2020 51"}`)}
)

func TestSealedContentOpensAtItsPlaceOnly(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1))
	sealed, err := r.Seal(t.Context(), here, plain)
	if err != nil || sealed.Type != SealedType || bytes.Contains(sealed.Bytes, []byte("iban")) || bytes.Contains(sealed.Bytes, []byte("json")) {
		t.Fatalf("sealed %q as %s, %v", sealed.Bytes, sealed.Type, err)
	}
	opened, err := r.Open(t.Context(), here, sealed)
	if err != nil || opened.Type != plain.Type || !bytes.Equal(opened.Bytes, plain.Bytes) {
		t.Errorf("opened %q as %s, %v", opened.Bytes, opened.Type, err)
	}
	for what, part := range map[string]outbox.Part{
		"another job's":    {Tenant: here.Tenant, Job: outbox.NewID(), Column: here.Column},
		"another tenant's": {Tenant: outbox.NewID(), Job: here.Job, Column: here.Column},
		"another column's": {Tenant: here.Tenant, Job: here.Job, Column: "result"},
	} {
		if opened, err := r.Open(t.Context(), part, sealed); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s opens: %q, %v", what, opened.Bytes, err)
		}
	}
	again, _ := r.Seal(t.Context(), here, plain)
	if bytes.Equal(again.Bytes, sealed.Bytes) {
		t.Error("the same content was sealed to the same bytes")
	}
}

func TestEveryByteIsAuthenticated(t *testing.T) {
	t.Parallel()
	r := ring(t, key("a", 1), key("b", 2))
	sealed, _ := r.Seal(t.Context(), here, plain)
	for i := range sealed.Bytes {
		for _, change := range []byte{1, 3, 0x80} { // 3 makes key a of key b
			changed := bytes.Clone(sealed.Bytes)
			changed[i] ^= change
			if _, err := r.Open(t.Context(), here, outbox.Content{Type: SealedType, Bytes: changed}); !errors.Is(err, ErrUnreadable) {
				t.Fatalf("byte %d changed by %#x: %v", i, change, err)
			}
		}
		if _, err := r.Open(t.Context(), here, outbox.Content{Type: SealedType, Bytes: sealed.Bytes[:i]}); !errors.Is(err, ErrUnreadable) {
			t.Fatalf("cut off at byte %d: %v", i, err)
		}
	}
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	old := ring(t, key("2025", 1))
	sealed, _ := old.Seal(t.Context(), here, plain)
	rotated := ring(t, key("2026", 2), key("2025", 1))
	if opened, err := rotated.Open(t.Context(), here, sealed); err != nil || !bytes.Equal(opened.Bytes, plain.Bytes) {
		t.Errorf("the old key's content: %q, %v", opened.Bytes, err)
	}
	fresh, _ := rotated.Seal(t.Context(), here, plain)
	if _, err := old.Open(t.Context(), here, fresh); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), `key "2026" is not in the ring`) {
		t.Errorf("without the new key: %v", err)
	}
	if _, err := ring(t, key("2025", 9)).Open(t.Context(), here, sealed); !errors.Is(err, ErrUnreadable) {
		t.Errorf("another secret under the same name: %v", err)
	}
}

func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		field string
		keys  []Key
	}{
		"0 bytes long":        {"current.ID", []Key{key("", 1)}},
		"65 bytes long":       {"current.ID", []Key{key(strings.Repeat("k", 65), 1)}},
		"which two keys have": {"old[0].ID", []Key{key("a", 1), key("a", 2)}},
		"is all zeros":        {"current.Secret", []Key{{ID: "a"}}},
		`key "b" is all ze`:   {"old[1].Secret", []Key{key("a", 1), key("c", 1), {ID: "b"}}},
	} {
		_, err := NewKeyring(c.keys[0], c.keys[1:]...)
		if found, ok := errors.AsType[*outbox.InvalidError](err); !ok || found.Field != c.field || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an InvalidError of %s with %q", err, c.field, want)
		}
	}
	if got := fmt.Sprintf("%v %+v %#v %s", key("a", 'S'), key("a", 'S'), key("a", 'S'), key("a", 'S')); strings.Contains(got, "83") || strings.Contains(got, "0x53") {
		t.Errorf("the secret is printed: %s", got)
	}
}

func FuzzOpen(f *testing.F) {
	r := ring(f, key("a", 1))
	sealed, _ := r.Seal(f.Context(), here, plain)
	for _, seed := range [][]byte{sealed.Bytes, nil, []byte(magic), []byte(magic + "\xff"), sealed.Bytes[:len(sealed.Bytes)-1]} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		opened, err := r.Open(context.Background(), here, outbox.Content{Type: SealedType, Bytes: content})
		if err == nil && !bytes.Equal(content, sealed.Bytes) || err != nil && !errors.Is(err, ErrUnreadable) {
			t.Errorf("%x opens as %q, %v", content, opened.Bytes, err)
		}
	})
}

// Whatever was sealed opens as it was, and at no other place.
func FuzzSeal(f *testing.F) {
	f.Add("application/json", []byte(`{}`), "payload")
	f.Add("", []byte(nil), "result")
	f.Add(strings.Repeat("x", 300), []byte{0xff, 0}, "a\x00b")
	f.Add(string(SealedType), []byte(magic), "")
	r := ring(f, key("a", 1), key("b", 2))
	f.Fuzz(func(t *testing.T, contentType string, content []byte, column string) {
		part := outbox.Part{Tenant: here.Tenant, Job: here.Job, Column: column}
		sealed, err := r.Seal(t.Context(), part, outbox.Content{Type: contentType, Bytes: content})
		if err != nil {
			t.Fatal(err)
		}
		opened, err := r.Open(t.Context(), part, sealed)
		if err != nil || opened.Type != contentType || !bytes.Equal(opened.Bytes, content) {
			t.Errorf("%q of %q opens as %q of %q, %v", content, contentType, opened.Bytes, opened.Type, err)
		}
		part.Column += "2"
		if _, err := r.Open(t.Context(), part, sealed); !errors.Is(err, ErrUnreadable) {
			t.Errorf("what was sealed for %q opens for %q: %v", column, part.Column, err)
		}
	})
}

// A reference leads to what was stored for this part, unchanged, or to nothing.
func FuzzReference(f *testing.F) {
	stored := kept{}
	c := &ClaimCheck{Store: stored, Above: 1}
	// The same in every process.
	part := outbox.Part{Tenant: outbox.RootTenant, Job: outbox.RootTenant, Column: "payload"}
	good, err := c.Seal(f.Context(), part, plain)
	if err != nil {
		f.Fatal(err)
	}
	foreign, _ := c.Seal(f.Context(), outbox.Part{Tenant: here.Tenant, Job: outbox.RootTenant, Column: "result"}, plain)
	for _, seed := range []string{string(good.Bytes), string(foreign.Bytes), "", "{}", "null", `{"name":"../x","sha256":""}`, strings.Replace(string(good.Bytes), `"name"`, `"NAME"`, 1)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		opened, err := c.Open(t.Context(), part, outbox.Content{Type: ClaimCheckType, Bytes: text})
		if err == nil && !bytes.Equal(opened.Bytes, plain.Bytes) || err != nil && opened.Bytes != nil {
			t.Errorf("%q opens as %q, %v", text, opened.Bytes, err)
		}
	})
}

// kept is a store in memory.
type kept map[string][]byte

func (k kept) Put(_ context.Context, name string, content []byte) error {
	k[name] = content
	return nil
}

func (k kept) Get(_ context.Context, name string) ([]byte, error) {
	content, ok := k[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return content, nil
}

func checks(t *testing.T, inner outbox.Protector) (*ClaimCheck, string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "claims")
	dir, err := OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return &ClaimCheck{Store: dir, Above: 100, MaxBytes: 10_000, Inner: inner}, folder
}

// files returns what the folder holds: name to content.
func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLargeContentIsElsewhere(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]outbox.Protector{"in the clear": nil, "encrypted": ring(t, key("a", 1))} {
		c, folder := checks(t, inner)
		large := outbox.Content{Type: "text/plain", Bytes: bytes.Repeat([]byte("secret "), 1000)}
		for _, content := range []outbox.Content{{Type: "text/plain", Bytes: []byte("x")}, large} {
			sealed, err := c.Seal(t.Context(), here, content)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Seal(t.Context(), here, content); err != nil { // again, as a retry does
				t.Errorf("%s: stored again: %v", name, err)
			}
			opened, err := c.Open(t.Context(), here, sealed)
			if err != nil || opened.Type != content.Type || !bytes.Equal(opened.Bytes, content.Bytes) {
				t.Errorf("%s: opened %d bytes of %s, %v", name, len(opened.Bytes), opened.Type, err)
			}
			if elsewhere := sealed.Type == ClaimCheckType; elsewhere != (len(content.Bytes) > 100) {
				t.Errorf("%s: %d bytes are stored as %s", name, len(content.Bytes), sealed.Type)
			}
		}
		stored := files(t, folder)
		if len(stored) == 0 {
			t.Errorf("%s: nothing is stored", name)
		}
		for path, content := range stored {
			if strings.HasSuffix(path, ".part") || (inner != nil) == strings.Contains(content, "secret") {
				t.Errorf("%s: %s holds %.20q", name, path, content)
			}
		}
	}
}

// A mistake shows at the first job, not at the first one that is large.
func TestAClaimCheckThatIsConfiguredWrongly(t *testing.T) {
	t.Parallel()
	good, _ := checks(t, nil)
	for want, c := range map[string]ClaimCheck{
		"ClaimCheck.Store":    {},
		"ClaimCheck.Above":    {Store: good.Store, Above: -1},
		"ClaimCheck.MaxBytes": {Store: good.Store, MaxBytes: -1},
	} {
		_, err := c.Seal(t.Context(), here, plain)
		if bad, ok := errors.AsType[*outbox.InvalidError](err); !ok || bad.Field != want {
			t.Errorf("sealed with a mistake in %s: %v", want, err)
		}
	}
	sealed, err := good.Seal(t.Context(), here, outbox.Content{Type: "text/plain", Bytes: make([]byte, 200)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(ClaimCheck).Open(t.Context(), here, sealed); err == nil || errors.Is(err, ErrUnreadable) {
		t.Errorf("opened without a store: %v", err)
	}
}

func TestAClaimCheckTakesNothingElse(t *testing.T) {
	t.Parallel()
	c, folder := checks(t, nil)
	if _, err := c.Seal(t.Context(), here, outbox.Content{Bytes: make([]byte, 10_001)}); !isTooLarge(err) {
		t.Errorf("too large: %v", err)
	}
	sealed, err := c.Seal(t.Context(), here, outbox.Content{Type: "text/plain", Bytes: bytes.Repeat([]byte("large"), 100)})
	if err != nil {
		t.Fatal(err)
	}
	another := outbox.Part{Tenant: here.Tenant, Job: outbox.NewID(), Column: "payload"}
	if _, err := c.Open(t.Context(), another, sealed); !errors.Is(err, ErrUnreadable) {
		t.Errorf("another job's: %v", err)
	}
	for _, text := range []string{`{}`, `[]`, ``, `{"name":"../../etc/passwd","sha256":"` + strings.Repeat("0", 64) + `"}`} {
		if _, err := c.Open(t.Context(), here, outbox.Content{Type: ClaimCheckType, Bytes: []byte(text)}); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for path := range files(t, folder) {
		if err := os.WriteFile(path, []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Open(t.Context(), here, sealed); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("a changed file: %v", err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open(t.Context(), here, sealed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lost file: %v", err)
	}
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*TooLargeError](err)
	return ok
}

func TestADirKeepsToItself(t *testing.T) {
	t.Parallel()
	dir, err := OpenDir(filepath.Join(t.TempDir(), "d"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := dir.Put(t.Context(), "../outside", []byte("x")); err == nil {
		t.Error("a name outside the folder was stored")
	}
	if _, err := dir.Get(t.Context(), "../../etc/passwd"); err == nil {
		t.Error("a name outside the folder was read")
	}
}
