// Command jobcolumns spells the columns of a job out, before sqlc reads the statements: a
// statement of queries/ says {{closed}}, and bin/queries, which sqlc reads, has the list.
// With -check it only reports whether internal/sqlgen/columns.go is what it would write.
//
//	{{jobs}}            jobs.id, jobs.tenant_id …    what history needs, to RETURN it
//	{{history}}         id, tenant_id …              the columns of outbox.history
//	{{closed "'done'"}} id, …, 'done', …             their values, with a status
//	{{stored}}          id, tenant_id …              what producers store of a job
//	{{given}}           @id::uuid …                  the values of one job
//	{{arrays}}          unnest(@kinds::text[]) …     the elements of many jobs, but for their ids
//	{{values}}          coalesce(priority, 0) …      the values of many jobs
//	{{claimed "jobs"}}  jobs.id, jobs.tenant_id …    what a claim returns
//	{{open "jobs"}}     jobs.id AS id …              what people are shown of an open job
//	{{shut "history"}}  history.id AS id …           and of a closed one
//	{{root}}            the id of the root tenant
//
// A list that is written in the statements is the same to the server as one that is written
// by hand: nothing is called for a row.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

const goFile = "internal/sqlgen/columns.go"

func main() {
	check := flag.Bool("check", false, "only report whether "+goFile+" is up to date")
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
	if !check {
		return os.WriteFile(goFile, source, 0o666)
	}
	if now, err := os.ReadFile(goFile); err != nil || !bytes.Equal(now, source) {
		return fmt.Errorf("%s is not up to date, run make generate", goFile)
	}
	return nil
}

// expand is the text of a file with its lists spelled out.
func expand(name, text string) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{
		"root":    func() string { return root },
		"jobs":    func() string { return list(isKept, func(c column) string { return "jobs." + c.history }) },
		"history": func() string { return "status, " + list(isKept, column.historyName) },
		"closed": func(status string) string {
			return status + ", " + list(isKept, func(c column) string { return c.history })
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
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, nil)
	return b.Bytes(), err
}

func isKept(c column) bool  { return c.history != "" }
func isGiven(c column) bool { return c.given != "" }

func isShown(c column) bool { return c.shown != "" }

// spelled is what the column is of a table, under the name that people are shown.
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

// list is what spell says of the columns that has picks, in lines of moderate length.
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

// arrays are the elements of many jobs' columns but their ids, which each statement names itself.
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
