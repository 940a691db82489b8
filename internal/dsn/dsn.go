// Package dsn explains what is wrong with a connection string without showing a secret that may be in it.
package dsn

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	errSpace     = errors.New("it begins or ends with a space, a line break or a quotation mark")
	errNoURL     = errors.New("a URL begins with postgres:// or postgresql://, with nothing before it")
	errAmbiguous = errors.New(
		"it has a second @, or a / before one: in a user or a password @ is written %40, / is %2F, : is %3A, ? is %3F, # is %23 and % is %25")
	errMalformed = errors.New(
		"want something like postgres://user:password@host:5432/database or host=… dbname=…; in a URL's password @ is written %40, / is %2F and % is %25, " +
			"and elsewhere a value with spaces stands between apostrophes")
)

// Explain returns what is wrong with a connection string: the error of pgx, if there is one, without the string and
// without anything that may be part of a password. If a password is not escaped, pgx may parse the string as another
// one, with the rest of the password as a host or a database to which it then connects: Explain refuses such strings.
func Explain(connString string, parsed error) error {
	if strings.Trim(connString, " \t\r\n'\"`") != connString && (parsed != nil || !isKeywords(connString)) {
		return errSpace
	}
	rest, isURL := cutScheme(connString)
	if before, _, _ := strings.Cut(connString, "="); !isURL && strings.Contains(before, "://") {
		return errNoURL
	}
	if isURL && ambiguous(rest) {
		return errAmbiguous
	}
	if parsed == nil {
		return nil
	}
	_, options, _ := strings.Cut(rest, "?")
	return cause(parsed, strings.Contains(options, "@"))
}

func isKeywords(s string) bool {
	_, isURL := cutScheme(strings.TrimLeft(s, " \t\r\n'\"`"))
	return !isURL
}

func cutScheme(s string) (rest string, ok bool) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, ok := strings.CutPrefix(s, scheme); ok {
			return rest, true
		}
	}
	return "", false
}

// ambiguous reports whether there is an @ after the one that ends user and password, or after a / that would end them,
// and before the options.
func ambiguous(rest string) bool {
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return strings.Contains(rest, "@")
}

// cause returns the part of an error of pgx that does not quote the string. If pgx could not parse the string at all,
// the place that it names may be part of a password; if the options contain an @, so may an option's value.
func cause(err error, withoutValues bool) error {
	refused, ok := errors.AsType[*pgconn.ParseConfigError](err)
	if !ok {
		return errMalformed
	}
	text := refused.Error()
	i := strings.LastIndex(text, "`: ")
	if i < 0 {
		return errMalformed
	}
	text = text[i+len("`: "):]
	if strings.HasPrefix(text, "failed to parse as ") {
		return errMalformed
	}
	if withoutValues {
		text, _, _ = strings.Cut(text, ": ")
		text, _, _ = strings.Cut(text, " (")
	}
	return errors.New(text)
}
