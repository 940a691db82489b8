package kinds_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/outbox"
)

type line struct {
	Article string `json:"article" minLength:"1"`
	Count   int    `json:"count" minimum:"1"`
	Parts   []line `json:"parts,omitempty"` // refers to itself
}

type sendReceipt struct {
	OrderID int64     `json:"orderId"`
	To      string    `json:"to" format:"email" doc:"Who gets it"`
	Due     time.Time `json:"due,omitzero"`
	Note    *string   `json:"note,omitempty"`
	Lines   []line    `json:"lines"`
}

func (sendReceipt) Kind() string { return "receipt.send" }

func receipts(t *testing.T) *kinds.Schemas {
	t.Helper()
	var s kinds.Schemas
	if err := kinds.AddType[sendReceipt](&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func check(t *testing.T, s *kinds.Schemas, kind, payload string) map[string]string {
	t.Helper()
	err := s.Check(kind, outbox.Content{Type: "application/json; charset=utf-8", Bytes: []byte(payload)})
	found := map[string]string{}
	for _, line := range strings.Split(errText(err), "\n") {
		if field, reason, ok := strings.Cut(line, " "); ok {
			found[field] = reason
		}
	}
	if err != nil {
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%s: %v is no InvalidError", payload, err)
		}
	}
	return found
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What encoding/json writes of the type is what its schema takes.
func TestAGoTypeTakesWhatItWrites(t *testing.T) {
	t.Parallel()
	s := receipts(t)
	note := "n"
	for _, args := range []sendReceipt{
		{OrderID: 1 << 62, To: "ada@example.org", Lines: []line{{Article: "a", Count: 1, Parts: []line{{Article: "b", Count: 2}}}}},
		{To: "ada@example.org", Due: time.Now(), Note: &note, Lines: []line{}},
		{To: "ada@example.org"}, // a nil slice is null
	} {
		if _, err := outbox.NewProducer(nil, outbox.NotifyOff).Enqueue(t.Context(), nobody{}, args, outbox.Options{Check: s}); !errors.Is(err, errNobody) {
			t.Errorf("%+v: %v, want it to be sent", args, err)
		}
	}
}

type part struct {
	Name string           `json:"name"`
	Next *part            `json:"next"`
	Tags map[string]*part `json:"tags"`
}

// self describes itself, by a schema that all of its fields share.
type self string

var selfSchema = &huma.Schema{Type: huma.TypeString}

func (self) Schema(huma.Registry) *huma.Schema { return selfSchema }

type empty struct {
	Attributes map[string]string         `json:"attributes" doc:"As the shop has them"`
	Body       []byte                    `json:"body"`
	Part       *part                     `json:"part" doc:"The first"`
	Rarely     *part                     `json:"rarely,omitempty"`
	Parts      []*part                   `json:"parts"`
	ByName     map[string]map[string]int `json:"byName"`
	Lists      map[string][]string       `json:"lists"`
	Colour     *string                   `json:"colour" enum:"red,blue"`
	Fixed      *string                   `json:"fixed" const:"x"`
	At         *time.Time                `json:"at"`
	Sum        [4]byte                   `json:"sum"`
	Raw        json.RawMessage           `json:"raw"`
	Any        any                       `json:"any"`
	Own        *self                     `json:"own"`
	Never      map[string]string         `json:"never,omitempty" nullable:"false"`
	Unnamed    *struct{ A int }          `json:"unnamed"`
}

func (empty) Kind() string { return "empty" }

type attributes map[string]*part

func (attributes) Kind() string { return "attributes" }

// A value that is nil is null in JSON, wherever it stands.
func TestWhatMayBeNilMayBeNull(t *testing.T) {
	t.Parallel()
	var s kinds.Schemas
	if err := errors.Join(kinds.AddType[empty](&s), kinds.AddType[attributes](&s)); err != nil {
		t.Fatal(err)
	}
	colour, fixed := "red", "x"
	full := empty{
		Attributes: map[string]string{"a": "b"}, Body: []byte("b"), Part: &part{Tags: map[string]*part{"none": nil}},
		Rarely: &part{}, Parts: []*part{nil, {Name: "n", Next: &part{}}}, ByName: map[string]map[string]int{"none": nil},
		Lists: map[string][]string{"none": nil}, Colour: &colour, Fixed: &fixed, At: new(time.Time), Own: new(self),
		Raw: json.RawMessage(`[1]`), Any: 1, Never: map[string]string{"a": "b"}, Unnamed: &struct{ A int }{1},
	}
	for _, args := range []outbox.Args{empty{}, full, attributes(nil), attributes{"none": nil, "one": {}}} {
		payload, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		if faults := check(t, &s, args.Kind(), string(payload)); len(faults) > 0 {
			t.Errorf("%s: %v", payload, faults)
		}
	}
	for _, field := range []string{
		`"attributes":{"a":null}`, `"body":1`, `"part":{}`, `"part":1`, `"parts":[1]`, `"colour":"green"`,
		`"fixed":"y"`, `"sum":"AAAAAA=="`, `"sum":[1]`, `"never":null`, `"own":1`, `"rarely":null`, `"unnamed":{}`,
	} {
		var with map[string]any
		text, _ := json.Marshal(full)
		_ = json.Unmarshal(text, &with)
		_ = json.Unmarshal([]byte("{"+field+"}"), &with)
		text, _ = json.Marshal(with)
		if len(check(t, &s, "empty", string(text))) == 0 {
			t.Errorf("%s is accepted", field)
		}
	}
	if selfSchema.Nullable {
		t.Error("the type's own schema was changed")
	}
}

func TestFaultsAreNamedByTheirPlace(t *testing.T) {
	t.Parallel()
	s := receipts(t)
	if err := s.Add("choice", []byte(`{"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}], "not": {"const": "no"}}`)); err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string][]string{
		`{"orderId":1,"to":"ada@example.org","lines":[]}`:                            nil,
		`{"orderId":"1","to":"ada@example.org","lines":[]}`:                          {"Args/orderId"},
		`{"orderId":1.5,"to":"nobody","lines":[],"due":"tomorrow"}`:                  {"Args/due", "Args/orderId", "Args/to"},
		`{"orderId":1,"lines":[{"article":"","count":1,"parts":[{"article":"a"}]}]}`: {"Args/lines/0/article", "Args/lines/0/parts/0/count", "Args/to"},
		`{"orderId":1,"to":"ada@example.org","lines":[],"a/b~c":1}`:                  {"Args/a~1b~0c"},
		`[]`:   {"Args"},
		`{} x`: {"Args"},
	} {
		var got []string
		for field := range check(t, s, "receipt.send", payload) {
			got = append(got, field)
		}
		if diff := cmp.Diff(want, sorted(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", payload, diff)
		}
	}
	if got := check(t, s, "choice", `{"b":1}`); len(got) != 1 || got["Args"] == "" {
		t.Errorf("a choice: %v, want one fault", got)
	}
}

func TestWhatHasNoSchemaIsTaken(t *testing.T) {
	t.Parallel()
	var none *kinds.Schemas
	for _, s := range []*kinds.Schemas{none, new(kinds.Schemas), receipts(t)} {
		if got := check(t, s, "other", `{"orderId":"x"}`); len(got) != 0 || s.Has("other") {
			t.Errorf("check = %v", got)
		}
	}
	if err := receipts(t).Check("receipt.send", outbox.Content{Type: "application/x-protobuf", Bytes: []byte{1}}); err != nil {
		t.Errorf("bytes that are no JSON: %v", err)
	}
}

func TestSchemasThatAreNotAccepted(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`{`: "EOF", `{"type": "nothing"}`: "type", `{"$ref": "file:///etc/hostname"}`: "itself only",
		`{"$ref": "https://example.org/x.json"}`: "itself only", `{"pattern": "("}`: "pattern",
	} {
		if err := new(kinds.Schemas).Add("mail", []byte(text)); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `"mail"`) {
			t.Errorf("Add %s = %v, want it to say %s", text, err, says)
		}
	}
	s := receipts(t)
	if err := s.Add("receipt.send", []byte(`{}`)); err == nil {
		t.Error("a second schema of a kind was taken")
	}
}

// What a program writes, an API in another process reads.
func TestAFolderOfSchemas(t *testing.T) {
	t.Parallel()
	s, folder := receipts(t), t.TempDir()
	if err := s.Add("mail/send", []byte(`{"type":"object"}`)); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFolder(folder); err != nil {
		t.Fatal(err)
	}
	var read kinds.Schemas
	if err := read.AddFolder(os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts(s), texts(&read)); diff != "" {
		t.Errorf("schemas (-written +read):\n%s", diff)
	}
	mounted := t.TempDir() // as Kubernetes mounts a ConfigMap: links to what is in a folder of the time
	if err := os.MkdirAll(filepath.Join(mounted, "..2026_11_27"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mounted, "..2026_11_27", "mail.send.schema.json"), []byte(`{}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": "..2026_11_27", "mail.send.schema.json": "..data/mail.send.schema.json"} {
		if err := os.Symlink(to, filepath.Join(mounted, link)); err != nil {
			t.Fatal(err)
		}
	}
	var of kinds.Schemas
	if err := of.AddFolder(os.DirFS(mounted)); err != nil || !of.Has("mail.send") || len(maps.Collect(of.All())) != 1 {
		t.Errorf("of a ConfigMap: %v, and it has %v", err, maps.Collect(of.All()))
	}
	err := new(kinds.Schemas).AddFolder(fstest.MapFS{"a.schema.json": {Data: []byte(`{}`)}, "README.md": {Data: []byte(`-`)}, "b.schema.json": {Data: []byte(`-`)}})
	if err == nil || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("AddFolder = %v, want it to name b", err)
	}
	var odd kinds.Schemas
	if err := errors.Join(odd.Add("../up", []byte(`{}`))); err != nil {
		t.Fatal(err)
	}
	if err := odd.WriteFolder(folder); err == nil {
		t.Error("a file was written outside of the folder")
	}
}
