package migrations_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

const signaturesFile = "testdata/signatures.golden"

// signature is a function as its callers see it: how it is called, and what it returns.
type signature struct {
	name, returns string
	arguments     []string // name and type; "?" follows if a caller may leave it out
}

// The functions that builds and SQL producers call, with their input arguments. Triggers are nobody's to call.
const signaturesQuery = `
	SELECT proname, pg_get_function_result(p.oid), ARRAY(
		SELECT concat(proargnames[n], ' ', format_type(proargtypes[n - 1], NULL), CASE WHEN n > pronargs - pronargdefaults THEN '?' END)
		FROM generate_series(1, pronargs) AS n ORDER BY n)
	FROM pg_proc AS p WHERE pronamespace = 'outbox'::regnamespace AND prorettype <> 'trigger'::regtype
	ORDER BY proname, pronargs`

func (s signature) String() string {
	return s.name + "(" + strings.Join(s.arguments, ", ") + "): " + s.returns
}

// accepts reports whether every call of an older signature is one of this, too: arguments are only added at the end,
// and may be left out.
func (s signature) accepts(older signature) bool {
	if s.name != older.name || s.returns != older.returns || len(s.arguments) < len(older.arguments) {
		return false
	}
	for i, argument := range s.arguments {
		optional := strings.HasSuffix(argument, "?")
		switch {
		case i >= len(older.arguments):
			if !optional {
				return false
			}
		case argument != older.arguments[i] && argument != older.arguments[i]+"?":
			return false
		}
	}
	return true
}

func parseSignature(line string) signature {
	name, rest, _ := strings.Cut(line, "(")
	i := strings.Index(rest, "): ") // no type of an argument has a colon
	s := signature{name: name, returns: rest[i+len("): "):]}
	if i > 0 {
		s.arguments = strings.Split(rest[:i], ", ")
	}
	return s
}

// A release calls the functions of the next one's schema, and SQL producers call them for as long as they like: each
// function that was released can be called as before. -update only adds functions to the list.
func TestSignaturesAreKept(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.New(t).Query(t.Context(), signaturesQuery)
	if err != nil {
		t.Fatal(err)
	}
	now, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s signature, err error) {
		return s, row.Scan(&s.name, &s.returns, &s.arguments)
	})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(signaturesFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	listed := strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
	for _, line := range listed {
		older := parseSignature(line)
		accepting := slices.DeleteFunc(slices.Clone(now), func(s signature) bool { return !s.accepts(older) })
		if len(accepting) != 1 { // Postgres refuses a call that two functions accept
			t.Errorf("%d functions can be called as the released, want one\n\t%s", len(accepting), line)
		}
	}
	for _, s := range now {
		if slices.Contains(listed, s.String()) {
			continue
		}
		if *update {
			listed = append(listed, s.String())
		} else {
			t.Errorf("%s lacks %s: go test ./migrations -run Signatures -update adds it", signaturesFile, s)
		}
	}
	if *update {
		slices.Sort(listed)
		if err := os.WriteFile(signaturesFile, []byte(strings.Join(listed, "\n")+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSignaturesThatBreakACallAreFound(t *testing.T) {
	t.Parallel()
	older := parseSignature("f(a text, b integer?): TABLE(x integer, y text)")
	for line, want := range map[string]bool{
		"f(a text, b integer?): TABLE(x integer, y text)":          true,
		"f(a text, b integer?, c uuid?): TABLE(x integer, y text)": true,
		"f(a text?, b integer?): TABLE(x integer, y text)":         true,
		"f(a text, b integer): TABLE(x integer, y text)":           false,
		"f(a text, b integer?, c uuid): TABLE(x integer, y text)":  false,
		"f(a text): TABLE(x integer, y text)":                      false,
		"f(z text, b integer?): TABLE(x integer, y text)":          false,
		"f(a text, b bigint?): TABLE(x integer, y text)":           false,
		"f(a text, b integer?): TABLE(x integer)":                  false,
		"g(a text, b integer?): TABLE(x integer, y text)":          false,
	} {
		if got := parseSignature(line).accepts(older); got != want {
			t.Errorf("%s: %t, want %t", line, got, want)
		}
	}
}
