// Package goreleaser compares .goreleaser.yaml with the schema of goreleaser, and with the Makefile. schema.json is the
// output of `goreleaser jsonschema` of goreleaser v2.15.0, which is under the MIT licence.
package goreleaser

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func config(t *testing.T) string { return read(t, "../../../.goreleaser.yaml") }

// Every field exists in goreleaser's schema, with the same type.
func TestTheSchemaKnowsEveryField(t *testing.T) {
	t.Parallel()
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, "schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text string) error {
		var decoded any
		if err := yaml.Unmarshal([]byte(text), &decoded); err != nil {
			t.Fatal(err)
		}
		spelled, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(spelled))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	good := config(t)
	if err := validate(good); err != nil {
		t.Error(err)
	}
	for of, bad := range map[string]string{
		"a build":   strings.Replace(good, "    main:", "    mian:", 1),
		"a hook":    strings.Replace(good, "- cmd:", "- cdm:", 1),
		"a release": strings.Replace(good, "  draft: true", "  draft: 7", 1),
		"an info":   strings.Replace(good, "      mtime:", "      mtme:", 1),
	} {
		if bad == good || validate(bad) == nil {
			t.Errorf("a misspelt field of %s was accepted", of)
		}
	}
}

// An archive has the files that somebody needs who has no clone, and each of them exists. Before anything is built, the
// manual that the program embeds is compared with its pages.
func TestWhatIsReleased(t *testing.T) {
	t.Parallel()
	var made struct {
		Before   struct{ Hooks []string }
		Archives []struct{ Files []struct{ Src, Dst string } }
	}
	if err := yaml.Unmarshal([]byte(config(t)), &made); err != nil || len(made.Archives) != 1 {
		t.Fatalf("%d archives, want 1, %v", len(made.Archives), err)
	}
	if !slices.Equal(made.Before.Hooks, []string{"make docs FRESH=1"}) || !strings.Contains(read(t, "../../../Makefile"), "$(if $(FRESH),-fresh)") {
		t.Errorf("before a release it runs %q, which does not compare the manual with its pages", made.Before.Hooks)
	}
	var packed []string
	for _, f := range made.Archives[0].Files {
		if strings.Contains(f.Src, "{{") { // a step before has made it
			continue
		}
		found, err := filepath.Glob("../../../" + f.Src)
		if err != nil || len(found) == 0 {
			t.Errorf("nothing is %s (%v)", f.Src, err)
		}
		for _, at := range found {
			err := filepath.WalkDir(at, func(path string, _ os.DirEntry, err error) error {
				packed = append(packed, strings.TrimPrefix(filepath.ToSlash(path), "../../../"))
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	for _, want := range []string{
		"LICENSE", "deploy/systemd/posthaste.service", "deploy/systemd/posthaste.env", "deploy/compose.yaml", "deploy/helm/posthaste/Chart.yaml",
		"deploy/helm/posthaste/templates/deployments.yaml", "deploy/prometheus/posthaste.rules.yml", "deploy/grafana/posthaste-overview.json",
	} {
		if !slices.Contains(packed, want) {
			t.Errorf("an archive lacks %s", want)
		}
	}
}

// It makes the same artefacts as the Makefile: the same flags, toolchain and environment, and the same programs that
// list the parts and pack the Debian package, with the same flags.
func TestItMakesWhatTheMakefileMakes(t *testing.T) {
	t.Parallel()
	var made struct {
		Builds []struct {
			Main                string
			Env, Flags, Ldflags []string
			Hooks               struct{ Post []struct{ Cmd string } }
		}
	}
	if err := yaml.Unmarshal([]byte(config(t)), &made); err != nil || len(made.Builds) != 1 {
		t.Fatalf("%d builds, want 1, %v", len(made.Builds), err)
	}
	build, makefile := made.Builds[0], strings.ReplaceAll(read(t, "../../../Makefile"), "\\\n", " ")
	find := func(pattern string) []string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile has nothing like %s", pattern)
		}
		return found[1:]
	}
	released := find(`\$\(RELEASE\) build (.*) -ldflags '(.*)' +\s*-o bin/release/\S+ (\S+);`)
	released[0] = strings.ReplaceAll(released[0], "$(TAGS)", find(`(?m)^TAGS += (\S+)$`)[0])
	toolchain := find(`(?m)^RELEASE += (\S+) `)
	cgo := find(`(?m)^export (CGO_ENABLED) = (0)$`)
	for what, is := range map[string][2]string{
		"flags":       {strings.Join(build.Flags, " "), released[0]},
		"ldflags":     {strings.Join(build.Ldflags, " "), strings.ReplaceAll(released[1], "$(VERSION)", "{{ .Tag }}")},
		"program":     {build.Main, released[2]},
		"environment": {strings.Join(build.Env, " "), strings.Join(cgo, "=") + " " + toolchain[0]},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: %q, want those of the Makefile, %q", what, is[0], is[1])
		}
	}
	flagsOf := func(arguments string) (flags []string) {
		for word := range strings.FieldsSeq(arguments) {
			if strings.HasPrefix(word, "-") {
				flags = append(flags, word)
			}
		}
		slices.Sort(flags)
		return flags
	}
	for _, tool := range []string{"./parts", "./deb"} {
		want := flagsOf(find(`run -C deploy/release ` + tool + ` ([^;]*)`)[0])
		i := slices.IndexFunc(build.Hooks.Post, func(h struct{ Cmd string }) bool { return strings.Contains(h.Cmd, " "+tool+" ") })
		if i < 0 {
			t.Errorf("no hook runs %s", tool)
			continue
		}
		_, arguments, _ := strings.Cut(build.Hooks.Post[i].Cmd, tool)
		if got := flagsOf(arguments); !slices.Equal(got, want) {
			t.Errorf("%s has the flags %q, want those that the Makefile gives it, %q", tool, got, want)
		}
	}
}
