package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFuzzTargetsAreListed compares the list in CONTRIBUTING.md with the targets that
// make fuzz runs.
func TestFuzzTargetsAreListed(t *testing.T) {
	doc, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	function := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			declared = append(declared, strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../")+"."+string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| (.*?) \\|").FindAllSubmatch(doc, -1) {
		for _, name := range regexp.MustCompile("`(Fuzz\\w+)`").FindAllSubmatch(row[2], -1) {
			listed = append(listed, string(row[1])+"."+string(name[1]))
		}
	}
	slices.Sort(declared)
	slices.Sort(listed)
	if !slices.Equal(declared, listed) {
		t.Errorf("CONTRIBUTING.md lists the fuzz targets\n%v, want\n%v", listed, declared)
	}
}

// TestArchitectureDocNamesTestsThatExist keeps the table of invariants honest: a
// guard that was renamed or deleted must not go on being promised.
func TestArchitectureDocNamesTestsThatExist(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(doc, -1)
	if len(named) < 20 {
		t.Errorf("docs/architecture.md names %d tests, want at least 20", len(named))
	}
	for _, m := range named {
		if !declared[string(m[1])] {
			t.Errorf("docs/architecture.md names %s, which no test file declares", m[1])
		}
	}
}

// TestArchitectureDocHasThePackagesInLayers compares the table of packages with the map of the architecture: each one
// is in one row, and imports only packages of lower layers.
func TestArchitectureDocHasThePackagesInLayers(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	layer := map[string]int{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*?) \|`).FindAllSubmatch(doc, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[2], -1) {
			if layer[string(name[1])] != 0 {
				t.Errorf("docs/architecture.md has %s twice", name[1])
			}
			layer[string(name[1])], err = strconv.Atoi(string(row[1]))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, may := range allowed {
		if strings.HasSuffix(name, "/...") {
			continue
		}
		if layer[name] == 0 {
			t.Errorf("docs/architecture.md has no package %s", name)
		}
		for imported := range strings.FieldsSeq(may) {
			if layer[imported] >= layer[name] {
				t.Errorf("docs/architecture.md: %s of layer %d imports %s of layer %d", name, layer[name], imported, layer[imported])
			}
		}
	}
	for name := range layer {
		if _, known := allowed[name]; !known {
			t.Errorf("docs/architecture.md has %s, which is no package", name)
		}
	}
}

// TestInvariantsAreTestedInEachFlow holds the second column of the invariants to what the page says of it: its tests go
// through jobs of root and of another tenant, without a key and with one.
func TestInvariantsAreTestedInEachFlow(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	function := regexp.MustCompile(`(?ms)^func (Test\w+)\(.*?^}`)
	err = filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			bodies[string(m[1])] = string(m[0])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| \\*\\*.*? \\| (`Test[^|]*) \\| [^|]+ \\|$").FindAllSubmatch(doc, -1)
	if len(rows) < 15 {
		t.Errorf("docs/architecture.md has %d invariants with tests in each flow, want at least 15", len(rows))
	}
	for _, row := range rows {
		for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(row[1], -1) {
			body := bodies[string(name[1])]
			tenants, keys := regexp.MustCompile(`[tT]enant|\bof\(`).MatchString(body), regexp.MustCompile(`Key|[kK]eyed`).MatchString(body)
			if !strings.Contains(body, "inEachFlow(") && !(tenants && keys) {
				t.Errorf("docs/architecture.md says that %s is for root and tenants, with keys and without", name[1])
			}
		}
	}
}
