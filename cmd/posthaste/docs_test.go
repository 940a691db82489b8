package main

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/docs/site"
)

func TestDocsPrintsAPage(t *testing.T) {
	t.Parallel()
	var out, failed strings.Builder
	env := func(string) string { return "" }
	if code := run(t.Context(), []string{"posthaste", "docs", "guides/retries"}, env, nil, &out, &failed); code != exitOK || !strings.HasPrefix(out.String(), "# ") {
		t.Errorf("exit %d: %.80s %s", code, out.String(), failed.String())
	}
	for _, page := range []string{"nothing", "../doc.go", ""} {
		if code := run(t.Context(), []string{"posthaste", "docs", page}, env, nil, io.Discard, io.Discard); code != exitUsage {
			t.Errorf("page %q: exit %d, want %d", page, code, exitUsage)
		}
	}
}

func TestDocsServesTheManual(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"posthaste", "docs", "--addr", "127.0.0.1:0"}, func(string) string { return "" }, nil, out, io.Discard)
	}()
	line := make([]byte, 200)
	n, err := in.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(string(line[:n]), "open "))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url + "operate/operations")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), "<title>") || !strings.HasSuffix(url, site.Base) {
		t.Errorf("%s: %s %.200s", url, res.Status, body)
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit %d after a stop, want 0", code)
	}
}

// Commands and flags that pages tell people to type are there: in blocks of sh, and in what begins with posthaste in
// running text.
func TestPagesNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	p := &program{getenv: func(string) string { return "" }}
	root := p.root()
	shell := regexp.MustCompile("(?ms)^[ \t]*```sh\n(.*?)^[ \t]*```$")
	inline := regexp.MustCompile("`(posthaste [^`]+)`")
	command := regexp.MustCompile(`(?:^|[|(;&$] *|^(?:[A-Z_]+=\S+ )+)posthaste (.*)`) // where a shell looks for one
	n := 0
	err := filepath.WalkDir("../../docs", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{"site", "adr", "model"}, entry.Name()) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		var typed []string
		for _, m := range shell.FindAllStringSubmatch(string(text), -1) {
			typed = append(typed, strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n")...)
		}
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			typed = append(typed, m[1])
		}
		for _, line := range typed {
			line, _, _ = strings.Cut(line, " #")
			if m := command.FindStringSubmatch(line); m != nil {
				n++
				after := m[1]
				if mistake := unknown(root, strings.Fields(after)); mistake != "" {
					t.Errorf("%s: posthaste %s: %s", path, after, mistake)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Errorf("%d commands: this looks at the wrong place", n)
	}
}

// The table of docs/operate/rollout.md has the field of app.Config for each variable that the manual gives.
func TestEachVariableHasItsFieldOfTheConfig(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operate/rollout.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## In your own program\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := 0
	for _, s := range allSettings {
		isField := slices.ContainsFunc([]string{"off", "on", "lose", "a=1", "a", "failed", "2d", "1s", "127.0.0.1:1", "postgres://h/d"}, func(value string) bool {
			var got settings
			return s.parse(&got, value) == nil && !reflect.DeepEqual(got.app, app.Config{})
		})
		if isField {
			n++
		}
		if isField && !strings.Contains(section, "`"+s.envs[0]) {
			t.Errorf("%s is a field of app.Config that the table does not name", s.envs[0])
		}
	}
	if n < 15 {
		t.Errorf("%d variables are fields of app.Config: this looks at the wrong values", n)
	}
}

// unknown returns what there is not of a command line; quoted texts with blanks are no words that begin with --.
func unknown(c *cli.Command, words []string) string {
	for len(words) > 0 {
		sub := c.Command(strings.Trim(words[0], ",.;"))
		if sub == nil {
			break
		}
		c, words = sub, words[1:]
	}
	if c.Command("list") != nil && c.Name != "posthaste" {
		c = c.Command("list")
	}
	if c.Name == "posthaste" && len(words) > 0 && words[0] != "completion" && regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
		return "no such command"
	}
	for _, word := range words {
		name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
		name = strings.TrimRight(name, ",.;)")
		if !strings.HasPrefix(word, "--") || name == "" || name == "help" || name == "version" {
			continue
		}
		if !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }) {
			return "no flag --" + name
		}
	}
	return ""
}
