package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const source = "../../.."

// tags are those of the Makefile.
const tags = "urfave_cli_no_template,grpcnotrace,netgo,osusergo"

// Every module that the program lists, and every script that is copied into it, has its licence in the one file and is
// listed in the other.
func TestEveryPartIsListed(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "posthaste")
	build := exec.Command("go", "build", "-tags", tags, "-o", binary, "./cmd/posthaste")
	build.Dir = source
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := run(source, dir, "v1", binary); err != nil {
		t.Fatal(err)
	}
	helpIsWhole(t, binary)
	texts, listed := lists(t, dir)
	inImage, listedInImage := lists(t, filepath.Join(dir, "image"))
	only := slices.DeleteFunc(slices.Clone(listedInImage), func(name string) bool { return slices.Contains(listed, name) })
	if len(listedInImage) != len(listed)+1 || len(only) != 1 || !strings.HasPrefix(only[0], certificates+" v") {
		t.Errorf("the image has %q as well, want %s", only, certificates)
	}
	if _, text, ok := strings.Cut(inImage, "\n"+only[0]+"\n\n"); !ok || !strings.HasPrefix(text, "Copyright") {
		t.Errorf("the image's THIRD_PARTY.txt has no licence of %s", only[0])
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go"), "uplot 1.6.32"}
	for _, m := range info.Deps {
		want = append(want, m.Path+" "+m.Version)
	}
	if len(want) < 50 {
		t.Fatalf("the program names %d modules: this looks at the wrong one", len(want))
	}
	for _, w := range want {
		if !slices.Contains(listed, w) {
			t.Errorf("%s is not in the bill of materials", w)
		}
		if _, text, ok := strings.Cut(texts, "\n"+w+"\n\n"); !ok || !strings.Contains(strings.ToLower(text[:min(len(text), 3000)]), "licen") && !strings.Contains(text[:min(len(text), 500)], "Copyright") {
			t.Errorf("%s has no licence in THIRD_PARTY.txt", w)
		}
	}
}

// helpIsWhole fails if the released program cannot print the help of a command, which it does without text/template.
func helpIsWhole(t *testing.T, binary string) {
	t.Helper()
	out, err := exec.Command(binary, "jobs", "retry", "--help").Output()
	if err != nil || !strings.Contains(string(out), "posthaste jobs retry") || !strings.Contains(string(out), "OPTIONS:") {
		t.Errorf("the help of a command is %q: %v", out, err)
	}
}

// lists returns THIRD_PARTY.txt of a folder, and the parts of its bill of materials.
func lists(t *testing.T, dir string) (texts string, listed []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "THIRD_PARTY.txt"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "posthaste.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct {
			Name, Version, Purl string
			Licenses            []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(list, &bom); err != nil {
		t.Fatal(err)
	}
	for _, c := range bom.Components {
		if len(c.Licenses) == 0 || c.Purl == "" {
			t.Errorf("%s %s has no licence or no purl", c.Name, c.Version)
		}
		listed = append(listed, c.Name+" "+c.Version)
	}
	return string(text), listed
}

// The listed npm packages are those in the sources.
func TestAssetsAreOfTheseVersions(t *testing.T) {
	parts, err := assets(source)
	if err != nil {
		t.Fatal(err)
	}
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(source, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	said := read("console/assets/vendor.txt") + read("api/explorer.go")
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if err := json.Unmarshal([]byte(read("docs/site/package-lock.json")), &lock); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !strings.Contains(said, p.name+"@"+p.version+" ") && !strings.Contains(said, p.name+" "+p.version+" ") && lock.Packages["node_modules/"+p.name].Version != p.version {
			t.Errorf("%s is not copied in version %s", p.name, p.version)
		}
	}
	for line := range strings.Lines(said) {
		if name, _, ok := strings.Cut(line, "@"); ok && strings.Contains(line, ".js ") && !strings.HasPrefix(line, "#") {
			if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
				t.Errorf("%s is copied, and is not listed", name)
			}
		}
	}
}

func TestALicenceThatAsksForMoreIsRefused(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "LICENSE")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	mit, err := os.ReadFile(filepath.Join(source, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files []string
		want  string // of the error; "" is none
	}{
		"MIT":          {[]string{write(string(mit))}, ""},
		"no file":      {nil, "no licence is known"},
		"another text": {[]string{write("All rights reserved.")}, "no licence is known"},
		"a lost file":  {[]string{"nowhere/LICENSE"}, "is not there"},
		"MIT and AGPL": {[]string{write(string(mit)), write(agpl)}, "AGPL"},
	} {
		p := part{name: "p", files: c.files}
		err := p.classify()
		if got := err != nil; got != (c.want != "") || got && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

const agpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU Affero
General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your
option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied
warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU Affero General Public License for more
details.

You should have received a copy of the GNU Affero General Public License along with this program. If not, see
<https://www.gnu.org/licenses/>.`
