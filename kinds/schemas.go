package kinds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Suffix ends the names of files with schemas.
const Suffix = ".schema.json"

// Schemas holds the schemas of kinds. The zero value is empty and ready to use; so is a nil pointer, except that
// nothing can be added to it. Schemas is safe for concurrent use.
type Schemas struct {
	mu     sync.RWMutex
	byKind map[string]schema
}

type schema struct {
	text     json.RawMessage
	compiled *jsonschema.Schema
}

// Add adds the schema of a kind, as text. A kind has only one schema. It may refer to parts of itself and to nothing
// else: Add loads nothing from files or addresses.
func (s *Schemas) Add(kind string, text []byte) error {
	compiled, err := compile(kind, text)
	if err != nil {
		return fmt.Errorf("schema of kind %q: %w", kind, err)
	}
	var compact bytes.Buffer
	_ = json.Compact(&compact, text) // it was parsed
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.byKind[kind]; twice {
		return fmt.Errorf("schema of kind %q: it has one already", kind)
	}
	if s.byKind == nil {
		s.byKind = map[string]schema{}
	}
	s.byKind[kind] = schema{text: compact.Bytes(), compiled: compiled}
	return nil
}

// nowhere is a loader that loads nothing.
type nowhere struct{}

func (nowhere) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is not loaded: a schema can refer to itself only", url)
}

// place is the name of the schema in messages and $refs.
const place = "schema.json"

func compile(kind string, text []byte) (*jsonschema.Schema, error) {
	if kind == "" {
		return nil, errors.New("the kind has no name")
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	c.UseLoader(nowhere{})
	if err := c.AddResource(place, parsed); err != nil {
		return nil, err
	}
	return c.Compile(place)
}

// AddFolder adds the schemas of a folder and its subfolders: KIND.schema.json is the schema of KIND, and
// mail/send.schema.json that of mail/send. It ignores other files.
func (s *Schemas) AddFolder(folder fs.FS) error {
	return fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		kind, ok := strings.CutSuffix(path, Suffix)
		switch {
		case err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".."):
			return fs.SkipDir // Kubernetes keeps the files of a ConfigMap here and links to them
		case err != nil || entry.IsDir() || !ok:
			return err
		}
		text, err := fs.ReadFile(folder, path)
		if err != nil {
			return err
		}
		return s.Add(kind, text)
	})
}

// WriteFolder writes the schemas in the form that AddFolder reads, for an API that runs in another process than the one
// that the types were compiled into.
func (s *Schemas) WriteFolder(folder string) error {
	for kind, text := range s.All() {
		path := filepath.Join(folder, filepath.FromSlash(kind)+Suffix)
		if !filepath.IsLocal(filepath.FromSlash(kind) + Suffix) {
			return fmt.Errorf("schema of kind %q: it is no name of a file", kind)
		}
		var indented bytes.Buffer
		_ = json.Indent(&indented, text, "", "  ") // it was parsed
		indented.WriteByte('\n')
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, indented.Bytes(), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether a kind has a schema.
func (s *Schemas) Has(kind string) bool {
	_, ok := s.find(kind)
	return ok
}

func (s *Schemas) find(kind string) (schema, bool) {
	if s == nil {
		return schema{}, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, ok := s.byKind[kind]
	return found, ok
}

// All yields the schemas by the names of their kinds.
func (s *Schemas) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		if s == nil {
			return
		}
		s.mu.RLock()
		all := maps.Clone(s.byKind)
		s.mu.RUnlock()
		for _, kind := range slices.Sorted(maps.Keys(all)) {
			if !yield(kind, all[kind].text) {
				return
			}
		}
	}
}

var _ outbox.Checker = (*Schemas)(nil)
