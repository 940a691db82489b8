package ledger

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A feed returns every entry once, also those of files that are created later, and leaves an incomplete line for the
// next time.
func TestAFeedTellsEveryEntryOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file, err := os.OpenFile(filepath.Join(folder, name+Suffix), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	feed := NewFeed(folder)
	fresh := func() (keys []string) {
		t.Helper()
		for e, err := range feed.Fresh() {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, e.Key)
		}
		return keys
	}
	for i, step := range []struct {
		name, text string
		want       []string
	}{
		{"a", `{"key":"1"}` + "\n" + `{"key":"2"}` + "\n" + `{"ke`, []string{"1", "2"}},
		{"b", `{"key":"3"}` + "\n", []string{"3"}},
		{"a", `y":"4"}` + "\n", []string{"4"}},
		{"a", ``, nil},
	} {
		write(step.name, step.text)
		if diff := cmp.Diff(step.want, fresh()); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	write("a", "no JSON\n")
	for _, err := range feed.Fresh() {
		if err == nil {
			t.Error("a torn line is told as an entry")
		}
	}
}
