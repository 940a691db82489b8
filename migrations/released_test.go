package migrations_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/migrations"
)

// released names the newest tagged release that changed the schema, and the sums of the files that it has.
const released = "testdata/released.txt"

// Builds of one release have the same functions and views. Otherwise processes of the one that has not migrated report
// the schema as edited and are not ready, and each of them makes its own functions again when it migrates: so a change
// after the tag belongs to a release of another name, by which a build tells that they are newer.
//
// A release is tagged once the changelog has its date, and -update then writes its list, once.
func TestATaggedReleaseKeepsItsSchema(t *testing.T) {
	t.Parallel()
	changelog, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(released)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	now := sumsOf(t)
	switch fault := faultOfRelease(string(changelog), string(list), release.Name(), now); {
	case *update && errors.Is(fault, errNotListed):
		if err := os.WriteFile(released, []byte(listOf(release.Name(), now)), 0o666); err != nil {
			t.Fatal(err)
		}
	case fault != nil:
		t.Error(fault)
	}
}

func TestAChangeAfterTheTagIsFound(t *testing.T) {
	t.Parallel()
	const (
		untagged = "# Changelog\n\n## 0.2.0 (not tagged yet)\n\n## 0.1.0 (2027-01-02)\n"
		tagged   = "# Changelog\n\n## 0.2.0 (2027-02-03)\n\n## 0.1.0 (2027-01-02)\n"
	)
	sums := map[string]string{"00001_x.sql": "aa", "functions/f.sql": "bb"}
	for name, c := range map[string]struct {
		changelog, list, release string
		now                      map[string]string
		want                     string
	}{
		"no release is tagged":                     {"# Changelog\n\n## 0.1.0 (not tagged yet)\n", "", "0.1.0", sums, ""},
		"the next release changes":                 {untagged, listOf("0.1.0", sums), "0.2.0", map[string]string{"functions/f.sql": "cc"}, ""},
		"as tagged":                                {tagged, listOf("0.2.0", sums), "0.2.0", sums, ""},
		"as tagged, and a patch is in the making":  {untagged, listOf("0.1.0", sums), "0.1.0", sums, ""},
		"tagged without a list":                    {tagged, listOf("0.1.0", sums), "0.2.0", sums, errNotListed.Error()},
		"no heading yet":                           {"# Changelog\n\n## 0.1.0 (2027-01-02)\n", listOf("0.1.0", sums), "0.2.0", sums, "no heading of release 0.2.0"},
		"a function changes under the tagged name": {untagged, listOf("0.1.0", sums), "0.1.0", map[string]string{"00001_x.sql": "aa", "functions/f.sql": "cc"}, "functions/f.sql"},
		"a function is taken out":                  {untagged, listOf("0.1.0", sums), "0.1.0", map[string]string{"00001_x.sql": "aa"}, "functions/f.sql"},
		"a numbered file is added":                 {untagged, listOf("0.1.0", sums), "0.1.0", map[string]string{"00001_x.sql": "aa", "00002_y.sql": "dd", "functions/f.sql": "bb"}, "00002_y.sql"},
	} {
		fault := faultOfRelease(c.changelog, c.list, c.release, c.now)
		if (fault == nil) != (c.want == "") || fault != nil && !strings.Contains(fault.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, fault, c.want)
		}
	}
}

var errNotListed = errors.New(released + " is not of the release that was tagged: go test ./migrations -run ATaggedRelease -update writes it")

// faultOfRelease compares the files of the schema with the list of the newest tagged release.
func faultOfRelease(changelog, list, name string, now map[string]string) error {
	switch heading := "\n## " + name + " ("; {
	case strings.Contains(changelog, heading+"not tagged yet)"):
		return nil
	case !strings.Contains(changelog, heading+"20"):
		return fmt.Errorf("CHANGELOG.md has no heading of release %s, with its date or (not tagged yet)", name)
	}
	listed, rest, _ := strings.Cut(list, "\n")
	if listed != name {
		return errNotListed
	}
	then := map[string]string{}
	for line := range strings.Lines(rest) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		then[file] = sum
	}
	var changed []string
	for _, file := range slices.Sorted(maps.Keys(union(then, now))) {
		if then[file] != now[file] {
			changed = append(changed, file)
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("release %s is tagged, and its schema has changed since: %s. Append the next release to names in internal/release, and give it a heading in CHANGELOG.md",
			name, strings.Join(changed, ", "))
	}
	return nil
}

func union(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func listOf(name string, sums map[string]string) string {
	list := name + "\n"
	for _, file := range slices.Sorted(maps.Keys(sums)) {
		list += sums[file] + "  " + file + "\n"
	}
	return list
}

// sumsOf returns the sums of the numbered files, functions and views.
func sumsOf(t *testing.T) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, pattern := range []string{"*.sql", "functions/*.sql", "views/*.sql"} {
		names, err := fs.Glob(migrations.FS, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			sums[name] = fmt.Sprintf("%x", sha256.Sum256([]byte(text(t, name))))
		}
	}
	return sums
}
