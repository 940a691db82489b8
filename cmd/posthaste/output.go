package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/urfave/cli/v3"
)

// checked records that output did not arrive, as on a full disk, because nobody checks the result of each Fprintln. A
// closed standard output cannot be detected: the Go runtime opens /dev/null in its place.
type checked struct {
	io.Writer
	mu  sync.Mutex
	err error
}

func (c *checked) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = cmp.Or(c.err, err)
	}
	return n, err
}

func (c *checked) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("the standard output: %w", c.err)
}

// screen returns the writer itself, which may be a terminal.
func (c *checked) screen() io.Writer { return c.Writer }

// outputFlag returns the flag of every command that prints a listing.
func outputFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`table|json|csv`",
		Validator: func(v string) error {
			if _, err := parseOneOf(v, "table", "json", "csv"); err != nil {
				return fmt.Errorf("--output is %q: %w", v, err)
			}
			return nil
		},
	}
}

// listing is rows of named values, with one form for people and two for machines.
type listing struct {
	header   []string
	rows     [][]any
	onScreen int // how many columns people see; 0 means all
}

func (l *listing) add(values ...any) { l.rows = append(l.rows, values) }

// print writes a listing in the form that --output selects.
func (p *program) print(c *cli.Command, l listing) error {
	switch c.String("output") {
	case "json":
		return l.json(p.stdout)
	case "csv":
		return l.csv(p.stdout)
	}
	return l.table(p.stdout)
}

// json writes an array of objects, one per line.
func (l listing) json(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString("[")
	for i, row := range l.rows {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  ")
		object, err := l.object(row)
		if err != nil {
			return err
		}
		b.Write(object)
	}
	if len(l.rows) > 0 {
		b.WriteString("\n")
	}
	b.WriteString("]\n")
	_, err := w.Write(b.Bytes())
	return err
}

// object encodes a row in the order of the columns, which a map would lose.
func (l listing) object(row []any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("{")
	for i, name := range l.header {
		if i > 0 {
			b.WriteString(", ")
		}
		value, err := json.Marshal(row[i])
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		fmt.Fprintf(&b, "%q: %s", name, value)
	}
	b.WriteString("}")
	return b.Bytes(), nil
}

func (l listing) csv(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write(l.header) // Flush and Error report failures
	for _, row := range l.rows {
		line := cells(row)
		for i, value := range row {
			if isText(value) {
				line[i] = forSpreadsheets(line[i])
			}
		}
		_ = out.Write(line)
	}
	out.Flush()
	return out.Error()
}

// isText reports whether a value is text, which others wrote, rather than a number or a time.
func isText(value any) bool {
	switch value.(type) {
	case nil, time.Time, bool, int, int16, int32, int64, float64:
		return false
	}
	return true
}

// forSpreadsheets keeps others' text from being a formula in a spreadsheet, by a leading apostrophe, and from moving
// the cursor of a terminal.
func forSpreadsheets(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		s = "'" + s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, s)
}

func (l listing) table(w io.Writer) error {
	shown := cmp.Or(l.onScreen, len(l.header))
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	t.SetStyle(style)
	t.AppendHeader(tableRow(l.header[:shown]))
	for _, row := range l.rows {
		line := cells(row)
		for i := range line {
			line[i] = oneLine(line[i])
		}
		t.AppendRow(tableRow(line[:shown]))
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func tableRow(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		row[i] = cell
	}
	return row
}

// oneLine keeps others' text (an error, a key) from moving a terminal's cursor or breaking a table.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// cells returns the values in readable form.
func cells(row []any) []string {
	list := make([]string, len(row))
	for i, value := range row {
		switch v := value.(type) {
		case nil:
		case time.Time:
			list[i] = v.Local().Format(time.RFC3339)
		case bool:
			list[i] = map[bool]string{true: "yes", false: "no"}[v]
		case json.RawMessage:
			list[i] = string(v)
		default:
			list[i] = fmt.Sprint(v)
		}
	}
	return list
}
