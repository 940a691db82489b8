package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

var updateReference = flag.Bool("update-reference", false, "write docs/reference/settings.md and commands.md")

// The pages are generated from the program's own help texts.
func TestReferenceIsWhatTheProgramSays(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{"settings.md": settingsPage(), "commands.md": commandsPage()} {
		path := "../../docs/reference/" + page
		if *updateReference {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) == want {
			continue
		}
		t.Errorf("docs/reference/%s is not what the program says; go test ./cmd/posthaste -run Reference -update-reference writes it", page)
		for line := range strings.Lines(want) {
			if !strings.Contains(string(got), line) {
				t.Errorf("it lacks: %s", line)
			}
		}
	}
}

func settingsPage() string {
	var b strings.Builder
	b.WriteString(`# Settings

The settings of ` + "`posthaste serve`" + ` and the other commands, generated from the program. Each setting is a flag and an
environment variable; the flag takes precedence. ` + "`posthaste config`" + ` prints the effective values and their sources. A
program that calls ` + "`app.Run`" + ` reads none of these variables: its settings are the [fields of
` + "`app.Config`" + `](../operate/rollout.md#in-your-own-program).

A ` + "`DURATION`" + ` is one or several numbers with units: ` + "`500ms`, `30s`, `1h30m`, `14d`, `1d12h`" + `. The units are ` + "`ms`, `s`,\n`m`, `h`" + ` and ` + "`d`" + `, which is 24 hours and comes first. A value outside of its range stops the start, with a sentence that
names it.

| variable | flag | default | accepts | meaning |
| --- | --- | --- | --- | --- |
`)
	for _, s := range slices.Concat(allSettings, apiSettings) {
		fallback := "none"
		if s.fallback != "" {
			fallback = "`" + s.fallback + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s | %s |\n", strings.Join(s.envs, "`, `"), s.flag, cell(fallback),
			cell(accepted(s)), cell(s.usage))
	}
	return b.String()
}

// accepted returns the values that a setting accepts, as the program words it when it refuses another one; "" if it
// does not, or if the usage lists them.
func accepted(s setting) string {
	err := s.parse(&settings{}, "\x00")
	if err == nil || strings.Contains(s.usage, "|") {
		return ""
	}
	_, want, _ := strings.Cut(err.Error(), "want ")
	for _, more := range []string{";", ", like ", ", as ", " ("} {
		want, _, _ = strings.Cut(want, more)
	}
	return strings.TrimPrefix(strings.TrimPrefix(want, "a duration of "), "something ")
}

func commandsPage() string {
	var b strings.Builder
	b.WriteString(`# Commands

The commands of ` + "`posthaste`" + ` for your terminal, generated from the program. ` + "`posthaste COMMAND --help`" + ` prints the same
text and also the flags that are [settings](settings.md), such as ` + "`--database-url`" + ` and ` + "`--api`" + `, which this page omits.
Exit statuses are in [operations](../operate/operations.md#exit-statuses-and-completions).
`)
	p := &program{getenv: func(string) string { return "" }}
	root := p.root()
	finish(root)
	describe(&b, root, "")
	return b.String()
}

// describe writes a section for each command below c.
func describe(b *strings.Builder, c *cli.Command, path string) {
	for _, sub := range c.Commands {
		if sub.Hidden {
			continue
		}
		name := strings.TrimSpace(path + " " + sub.Name)
		usage := fmt.Sprintf("`posthaste %s`: %s.", strings.TrimSpace(name+" "+sub.ArgsUsage), strings.TrimSuffix(sub.Usage, "."))
		fmt.Fprintf(b, "\n%s %s\n\n%s\n", map[bool]string{true: "##", false: "###"}[path == ""], name, folded(usage, 120))
		if sub.Description != "" {
			fmt.Fprintf(b, "\n```text\n%s\n```\n", sub.Description)
		}
		var rows strings.Builder
		for _, f := range sub.Flags {
			documented, ok := f.(cli.DocGenerationFlag)
			if !ok || isSetting(f) {
				continue
			}
			names := slices.Clone(f.Names())
			for i, n := range names {
				names[i] = "`" + map[bool]string{true: "-", false: "--"}[len(n) == 1] + n + "`"
			}
			fmt.Fprintf(&rows, "| %s | %s |\n", strings.Join(names, ", "), cell(documented.GetUsage()+defaultOf(documented)))
		}
		if rows.Len() > 0 {
			b.WriteString("\n| flag | meaning |\n| --- | --- |\n" + rows.String())
		}
		describe(b, sub, name)
	}
}

// defaultOf returns the default that --help adds to the usage of a flag, where the usage does not name it; "" if it
// adds none.
func defaultOf(f cli.DocGenerationFlag) string {
	value := strings.Trim(f.GetValue(), `"`)
	if !f.TakesValue() || !f.IsDefaultVisible() || value == "" || strings.Contains(f.GetUsage(), "default") {
		return ""
	}
	return " (default: " + value + ")"
}

// folded breaks a text into lines of that width.
func folded(text string, width int) string {
	var b strings.Builder
	at := 0
	for _, word := range strings.Fields(text) {
		if at > 0 && at+1+len(word) > width {
			b.WriteString("\n")
			at = 0
		} else if at > 0 {
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

// cell returns a text as it stands in a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}
