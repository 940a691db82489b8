package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

// write writes the page of docs/ from the record. It leaves nothing out: the page says so if a mutant was not tried or
// not caught.
func (r *record) write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.writeTo(file); err != nil {
		return err
	}
	return file.Close()
}

func (r *record) writeTo(w io.Writer) error {
	var b strings.Builder
	caught, rows := 0, 0
	var table strings.Builder
	for _, m := range mutants.All() {
		all := true
		for i, c := range m.Checks {
			e, tried := r.last[keyOf(m.Name, c)]
			result := "**not caught**"
			switch {
			case !tried:
				result = "not tried"
			case e.Caught:
				result = fmt.Sprintf("%s, %.0f s", e.At.Format("2006-01-02"), e.Seconds)
			}
			all = all && e.Caught
			if c.Row != "" && e.Caught {
				rows++
			}
			name, breaks := m.Name, m.Breaks
			if i > 0 {
				name, breaks = "", ""
			}
			fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", cell(name), cell(breaks), cell(c.Name()), result)
		}
		if all {
			caught++
		}
	}
	fmt.Fprintf(&b, "# Planted bugs\n\n"+
		"Written by `make mutants`; do not edit it. Each of these bugs is planted into a function of our own code, alone, and built; then every check that\n"+
		"stands beside it has to fail, for the reason that [internal/mutants](../internal/mutants) gives. What was not tried since it was listed says so. Time is that of\n"+
		"building and failing. A row is one of the scorecard in [proof.md](proof.md), run by `posthaste-proof verify` built with the bug; the others are Go tests.\n\n"+
		"**%d of %d planted bugs are caught**, %d of the checks are rows.\n\n"+
		"| planted | what it breaks | caught by | when |\n| --- | --- | --- | --- |\n%s", caught, len(mutants.All()), rows, table.String())
	_, err := io.WriteString(w, b.String())
	return err
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
