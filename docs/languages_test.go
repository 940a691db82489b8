package docs_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// The statements of guides/other-languages.md that call our functions can be prepared: functions, parameters and types
// exist. Drivers write placeholders in three ways.
func TestStatementsOfOtherLanguagesPrepare(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("guides/other-languages.md")
	if err != nil {
		t.Fatal(err)
	}
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	statement := regexp.MustCompile(`"(SELECT outbox\.[^"]*)"`)
	languages, n := map[string]bool{}, 0
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		for _, found := range statement.FindAllStringSubmatch(m[4], -1) {
			languages[m[3]] = true
			n++
			name := "s" + strconv.Itoa(n)
			if _, err := conn.Conn().Prepare(t.Context(), name, numbered(found[1])); err != nil {
				t.Errorf("%s: %s: %v", m[3], found[1], err)
			}
		}
	}
	if len(languages) != 4 || n < 5 {
		t.Errorf("%d statements of %v: this looks at the wrong place", n, languages)
	}
}

// numbered returns a statement with Postgres's own placeholders in place of %s or ?.
func numbered(sql string) string {
	n := 0
	return regexp.MustCompile(`%s|\?`).ReplaceAllStringFunc(sql, func(string) string {
		n++
		return "$" + strconv.Itoa(n)
	})
}

func TestPlaceholdersAreNumbered(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"f(%s::jsonb, a => %s)": "f($1::jsonb, a => $2)", "f(?, ?)": "f($1, $2)", "f($1, $2)": "f($1, $2)",
	} {
		if got := numbered(given); got != want {
			t.Errorf("numbered(%q) = %q, want %q", given, got, want)
		}
	}
}
