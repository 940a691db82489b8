package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorder keeps in mind what is opened, to be synced.
type recorder struct {
	*os.Root
	opened []string
}

func (r *recorder) Open(name string) (*os.File, error) {
	r.opened = append(r.opened, name)
	return r.Root.Open(name)
}

// Each folder's name is in the one above. One that is there another process may have
// made, and not have synced yet.
func TestEveryFolderAboveIsSynced(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for folder, want := range map[string][]string{
		".": nil, "a": {"."}, filepath.Join("b", "c", "d"): {filepath.Join("b", "c"), "b", "."},
	} {
		for _, what := range []string{"made", "there"} {
			r := &recorder{Root: root}
			if err := MkdirAll(r, folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, r.opened); diff != "" {
				t.Errorf("%s is %s: synced (-want +got):\n%s", folder, what, diff)
			}
		}
	}
}
