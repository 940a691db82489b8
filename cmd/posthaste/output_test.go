package main

import (
	"bytes"
	"io"
	"testing"
)

func TestListingsInEveryForm(t *testing.T) {
	l := listing{header: []string{"a", "b"}}
	l.add("x\x1b[2J\ny", true)
	l.add("=1+1", -5)
	for name, want := range map[string]string{
		"json":  `[` + "\n" + `  {"a": "x\u001b[2J\ny", "b": true},` + "\n" + `  {"a": "=1+1", "b": -5}` + "\n]\n",
		"csv":   "a,b\n\"x [2J\ny\",yes\n'=1+1,-5\n",
		"table": " A        B   \n x [2J y  yes \n =1+1     -5  \n",
	} {
		var out bytes.Buffer
		if err := map[string]func(io.Writer) error{"json": l.json, "csv": l.csv, "table": l.table}[name](&out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
