package verify

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The proof page names only tests that exist, and every test that is named after a row.
func TestTestedRowsNameEveryTestOfARow(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	folders := map[string]bool{}
	for _, row := range TestedRows() {
		folders[row.Folder] = true
		for _, test := range row.Tests {
			named[row.Folder+" "+test] = true
			if !strings.HasPrefix(test, "Test"+row.Name) && !(row.Name == "H1" && strings.HasPrefix(test, "Fuzz")) {
				t.Errorf("the test %s does not begin with the name of its row, %s", test, row.Name)
			}
		}
	}
	ofARow := regexp.MustCompile(`(?m)^func (Test[A-I][0-9]+[A-Z]\w*|Fuzz\w+)\(`)
	for folder := range folders {
		files, err := filepath.Glob("../../" + folder + "/*_test.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has %d files of tests, %v", folder, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range ofARow.FindAllStringSubmatch(string(text), -1) {
				if !named[folder+" "+m[1]] {
					t.Errorf("%s of %s is in no row", m[1], folder)
				}
				delete(named, folder+" "+m[1])
			}
		}
	}
	for test := range named {
		t.Errorf("there is no %s", test)
	}
}
