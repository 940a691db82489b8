// Command jobcolumns expands the lists of a job's columns before sqlc reads the statements: a statement of queries/ has
// {{closed}}, and bin/queries, which sqlc reads, has the list. It writes the list of functions/close_jobs.sql, which is
// applied as it stands, into that file. With -check it only reports whether that file and internal/sqlgen/columns.go
// are up to date.
//
//	{{jobs}}            jobs.id, jobs.tenant_id …    what history needs, to RETURN it
//	{{history}}         id, tenant_id …              the columns of outbox.history
//	{{closed "'done'"}} id, …, 'done', …             their values, with a status
//	{{counted "'done'"}} …, streamed + 1 …          the same, with one more event that the statement stores
//	{{stored}}          id, tenant_id …              what producers store of a job
//	{{given}}           @id::uuid …                  the values of one job
//	{{arrays}}          unnest(@kinds::text[]) …     the elements of many jobs, but for their ids
//	{{values}}          coalesce(priority, 0) …      the values of many jobs
//	{{claimed "jobs"}}  jobs.id, jobs.tenant_id …    what a claim returns
//	{{open "jobs"}}     jobs.id AS id …              what users see of an open job
//	{{shut "history"}}  history.id AS id …           and of a closed one
//	{{root}}            the id of the root tenant
//
// To the server a generated list is the same as one written by hand: no function is called for a row.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

const (
	goFile    = "internal/sqlgen/columns.go"
	closeFile = "migrations/functions/close_jobs.sql"
)

func main() {
	check := flag.Bool("check", false, "only report whether "+goFile+" and "+closeFile+" are up to date")
	flag.Parse()
	if err := run("queries", "bin/queries", *check); err != nil {
		fmt.Fprintln(os.Stderr, "jobcolumns:", err)
		os.Exit(1)
	}
}

func run(from, to string, check bool) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(from, "*.sql"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		out, err := expand(file, string(text))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), out, 0o666); err != nil {
			return err
		}
	}
	source, err := format.Source([]byte(goSource()))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(closeFile)
	if err != nil {
		return err
	}
	closing, err := closeJobs(string(text))
	if err != nil {
		return err
	}
	return errors.Join(write(goFile, source, check), write(closeFile, []byte(closing), check))
}

// write writes the text to a file, or only checks that the file has it.
func write(file string, text []byte, check bool) error {
	if !check {
		return os.WriteFile(file, text, 0o666)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, text) {
		return fmt.Errorf("%s is not up to date, run make generate", file)
	}
	return nil
}

// closeJobs expands the columns in the text of outbox.close_jobs. Closing a job from outside raises its epoch, and may
// record why its attempt failed.
func closeJobs(text string) (string, error) {
	const begin, end = "    INSERT INTO outbox.history AS h (", "    FROM closed\n"
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return "", fmt.Errorf("%s does not insert what it has closed into the history", closeFile)
	}
	values := list(isKept, func(c column) string {
		switch c.name {
		case "epoch":
			return "epoch + 1"
		case "last_error_code":
			return "coalesce(code, last_error_code)"
		case "last_error_message":
			return "coalesce(message, last_error_message)"
		}
		return c.history
	})
	statement := begin + "status, " + list(isKept, column.historyName) + ")\nSELECT outcome, " + values + "\n"
	return before + strings.ReplaceAll(strings.TrimSuffix(statement, "\n"), "\n", "\n    ") + "\n" + end + after, nil
}

// expand returns the text of a file with its lists expanded.
func expand(name, text string) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{
		"root":    func() string { return root },
		"jobs":    func() string { return list(isKept, func(c column) string { return "jobs." + c.history }) },
		"history": func() string { return "status, " + list(isKept, column.historyName) },
		"closed": func(status string) string {
			return status + ", " + list(isKept, func(c column) string { return c.history })
		},
		"counted": func(status string) string {
			return status + ", " + list(isKept, func(c column) string {
				if c.name == "streamed" {
					return "streamed + 1"
				}
				return c.history
			})
		},
		"stored": func() string { return list(isGiven, func(c column) string { return c.name }) },
		"given":  func() string { return list(isGiven, func(c column) string { return c.given }) },
		"values": func() string { return list(isGiven, func(c column) string { return c.value }) },
		"arrays": arrays,
		"open": func(of string) string {
			return list(isShown, func(c column) string { return c.spelled(c.open, of) })
		},
		"shut": func(of string) string {
			return list(isShown, func(c column) string { return c.spelled(c.closed, of) })
		},
		"claimed": func(of string) string {
			return list(func(c column) bool { return c.claimed }, func(c column) string { return of + "." + c.name })
		},
		"lapsed": lapsed,
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, nil)
	return b.Bytes(), err
}

// lapsed returns the SQL condition that nobody has a sink or a bridge whose lease ends then. A lease is 5 minutes at
// most: one that ends later was taken before the server's clock was set back, as a failover to a server whose clock is
// behind does. If its owner lives, its epoch fences it.
func lapsed(until string) string {
	return strings.ReplaceAll(
		"(%s IS NULL OR %s < clock_timestamp() OR %s > clock_timestamp() + interval '10 minutes')", "%s", until)
}

func isKept(c column) bool  { return c.history != "" }
func isGiven(c column) bool { return c.given != "" }

func isShown(c column) bool { return c.shown != "" }

// spelled returns the expression for the column in a table, under the name that users see.
func (c column) spelled(as, of string) string {
	if as == "" {
		as = "%s." + c.name
	}
	return strings.ReplaceAll(as, "%s", of) + " AS " + c.shown
}

func (c column) historyName() string {
	if c.kept != "" {
		return c.kept
	}
	return c.name
}

// list returns the results of spell for the columns that has selects, in lines of moderate length.
func list(has func(column) bool, spell func(column) string) string {
	var b strings.Builder
	line := 0
	for _, c := range columns {
		if !has(c) {
			continue
		}
		word := spell(c)
		switch {
		case b.Len() == 0:
		case line+len(word) > 100:
			b.WriteString(",\n    ")
			line = 0
		default:
			b.WriteString(", ")
		}
		b.WriteString(word)
		line += len(word) + 2
	}
	return b.String()
}

// arrays returns the elements of many jobs' columns, except their ids, which each statement names itself.
func arrays() string {
	var lines []string
	for _, c := range append(inputs[:len(inputs):len(inputs)], columns...) {
		if c.array == "" || c.name == "id" {
			continue
		}
		name := c.name
		if input, ok := inputNames[name]; ok {
			name = input
		}
		lines = append(lines, fmt.Sprintf("unnest(@%s::%s[]) AS %s", c.arrayName(), c.elementType(), name))
	}
	return strings.Join(lines, ",\n    ")
}

func (c column) elementType() string { t, _, _ := strings.Cut(c.array, " "); return t }
func (c column) arrayName() string   { _, n, _ := strings.Cut(c.array, " "); return n }
