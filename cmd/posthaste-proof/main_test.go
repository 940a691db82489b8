package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"":                         {exitOK, "verify-worker"},
		"verify --list":            {exitOK, "kill -9"},
		"verify --list A2":         {exitOK, "A2"},
		"verify --list --tier s":   {exitOK, "A2"},
		"verify no-such-row":       {exitUsage, "no-such-row"},
		"verify --tier X":          {exitUsage, "want P or S"},
		"verify --no-such-flag":    {exitUsage, "--help"},
		"verify --write-proof x":   {exitUsage, "FILE FOLDER"},
		"upgrade":                  {exitUsage, "a build is missing"},
		"upgrade --tier X":         {exitUsage, "want P or S"},
		"serve":                    {exitUsage, `no command "serve"`},
		"verify-worker --rows-too": {exitUsage, "--help"},
	} {
		var out bytes.Buffer
		code := run(t.Context(), append([]string{"posthaste-proof"}, strings.Fields(line)...), func(string) string { return "" }, &out, &out)
		if code != want.code || !strings.Contains(out.String(), want.says) {
			t.Errorf("posthaste-proof %s exits with %d, want %d, and says, without %q,\n%s", line, code, want.code, want.says, &out)
		}
	}
}
