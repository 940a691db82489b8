package mutants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write writes a module of the given files, by name, into a new folder.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var goSource = strings.ReplaceAll(`package p

import "time"

const (
	rest  = time.Second
	other = time.Second
)

type T[K any] struct{ k K }

func (t *T[K]) twice() { f(); f() }

func (t *T[K]) once() { f() }

const query = 'SELECT $12, $1 FROM t
WHERE a = $1'

func f() {
	if true {
		println('a',
			'b')
	}
}
`, "'", "`")

const sqlSource = `-- +goose Up
CREATE TABLE s.a (
    m text DEFAULT ';',
    n integer -- how many; 'never' more
);
CREATE UNIQUE INDEX a_idx ON s.a (n);

-- +goose StatementBegin
CREATE FUNCTION s.f(n integer) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    RETURN 1; -- not the end
END $$;
-- +goose StatementEnd
SELECT s.f(1);

-- +goose Down
CREATE FUNCTION s.f(n integer) RETURNS integer LANGUAGE sql AS 'SELECT 1';
`

func TestEditsAreMadeInTheirDeclaration(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"p/p.go":            goSource,
		"p/p_test.go":       "package p\n\nfunc f() {}\n",
		"m/1.sql":           sqlSource,
		"m/2.sql":           "CREATE OR REPLACE FUNCTION s.g() RETURNS text AS $a$ SELECT '$$;' $a$;\nSELECT 2;\n",
		"m/functions/g.sql": "CREATE FUNCTION s.h() RETURNS integer LANGUAGE sql AS $$ SELECT 3 $$;\n",
		"m/functions/z.sql": "CREATE TYPE s.late AS ENUM ('x');\n",
		"m/testdata/a.sql":  "CREATE TYPE s.late AS ENUM ('y');\n",
	})
	for name, c := range map[string]struct {
		edit     Edit
		file     string
		from, to string // file is "" if the edit must be refused
	}{
		"a constant of a group":       {Edit{"p.other", "time.Second", "0"}, "p/p.go", "other = time.Second", "other = 0"},
		"a method of a generic type":  {Edit{"p.T.once", "f()", "g()"}, "p/p.go", "once() { f() }", "once() { g() }"},
		"with its indentation":        {Edit{"p.f", "\tif true {\n", "\t{\n"}, "p/p.go", "\tif true {", "\t{"},
		"other white space":           {Edit{"p.f", "\n(`a`,`b`)\n", "\n()"}, "p/p.go", "(`a`,\n\t\t\t`b`)", "()"},
		"renumbered":                  {Edit{"p.query", "$2, $3", "$3, $2, $9"}, "p/p.go", "$12, $1", "$1, $12, $9"},
		"renumbered, longer":          {Edit{"p.query", "SELECT $1", "SELECT 1 + $1"}, "p/p.go", "$12", "1 + $12"},
		"one of two parameters":       {Edit{"p.query", "$1", "$3"}, "", "", ""},
		"twice":                       {Edit{"p.T.twice", "f()", "g()"}, "", "", ""},
		"not there":                   {Edit{"p.f", "g()", ""}, "", "", ""},
		"not in this one":             {Edit{"p.T.once", "println", "print"}, "", "", ""},
		"no such declaration":         {Edit{"p.g", "f()", ""}, "", "", ""},
		"nothing":                     {Edit{"p.f", " ", ""}, "", "", ""},
		"a table":                     {Edit{"m.s.a", "n integer", "n text"}, "m/1.sql", "n integer -- how", "n text -- how"},
		"a table, to its end":         {Edit{"m.s.a", "more\n);", "\n, m text);"}, "m/1.sql", "more\n);", "\n, m text);"},
		"an index":                    {Edit{"m.a_idx", "UNIQUE ", ""}, "m/1.sql", "CREATE UNIQUE INDEX", "CREATE INDEX"},
		"a function, after semicolon": {Edit{"m.s.f", "END $$;", "END; $$;"}, "m/1.sql", "END $$;", "END; $$;"},
		"beyond the function's end":   {Edit{"m.s.f", "SELECT s.f(1);", ""}, "", "", ""},
		"a function that is replaced": {Edit{"m.s.g", "$$;", ""}, "m/2.sql", "'$$;'", "''"},
		"beyond a replaced one":       {Edit{"m.s.g", "SELECT 2", ""}, "", "", ""},
		"a function of its own file":  {Edit{"m.s.h", "3", "4"}, "m/functions/g.sql", "SELECT 3", "SELECT 4"},
		"what is test data":           {Edit{"m.s.late", "'y'", ""}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			changed, err := Mutant{Edits: []Edit{c.edit}}.Changed(dir)
			if c.file == "" {
				if err == nil {
					t.Errorf("got %q, want an error", changed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			ours, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.Replace(string(ours), c.from, c.to, 1); changed[c.file] != want || len(changed) != 1 {
				t.Errorf("got %q, want %q in %s", changed, want, c.file)
			}
		})
	}
}

// If a later migration creates a function again, that definition counts.
func TestTheLastDefinitionInSQLCounts(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"m/1.sql":           "CREATE FUNCTION s.f() AS $$ old $$;\nCREATE FUNCTION s.g() AS $$ first $$;\n",
		"m/2.sql":           "CREATE FUNCTION s.g() AS $$ second $$;\n",
		"m/a/functions.sql": "CREATE FUNCTION s.f() AS $$ new $$;\n",
	})
	for _, e := range []Edit{{"m.s.f", "new", ""}, {"m.s.g", "second", ""}} {
		if _, err := (Mutant{Edits: []Edit{e}}).Changed(dir); err != nil {
			t.Error(err)
		}
	}
	for _, e := range []Edit{{"m.s.f", "old", ""}, {"m.s.g", "first", ""}} {
		if changed, err := (Mutant{Edits: []Edit{e}}).Changed(dir); err == nil {
			t.Errorf("got %q, want an error", changed)
		}
	}
}

func TestEditsOfOneFileAreMadeTogether(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"p/p.go": goSource})
	m := Mutant{Edits: []Edit{{"p.f", "`b`", "`c`"}, {"p.rest", "time.Second", "time.Hour"}, {"p.f", "true", "false"}}}
	changed, err := m.Changed(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("`b`", "`c`", "rest  = time.Second", "rest  = time.Hour", "true", "false").
		Replace(goSource)
	if changed["p/p.go"] != want {
		t.Errorf("got %s, want %s", changed["p/p.go"], want)
	}
	m.Edits = append(m.Edits, Edit{"p.f", "`a`,`b`", ""})
	if changed, err := m.Changed(dir); err == nil {
		t.Errorf("got %q of edits that overlap, want an error", changed)
	}
}
