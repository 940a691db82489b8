package durable

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorder records the folders that are opened to be synced.
type recorder struct {
	*os.Root
	opened []string
}

func (r *recorder) Open(name string) (*os.File, error) {
	r.opened = append(r.opened, name)
	return r.Root.Open(name)
}

// Each folder's name is in its parent. Another process may have made an existing folder, and not have synced it yet, so
// it is synced once. What this process has synced is not synced again, unless the folder is made again.
func TestEveryFolderAboveIsSyncedOnce(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll("there/before", 0o700); err != nil {
		t.Fatal(err)
	}
	r := &recorder{Root: root}
	folders := &Folders{Root: r}
	for _, c := range []struct {
		folder string
		want   []string
	}{
		{".", nil},
		{"a", []string{"."}},
		{"a", nil},
		{"there/before", []string{"there", "."}},
		{"a/b/c", []string{"a/b", "a"}},
		{"a/b/d/", []string{"a/b"}},
		{"a/b", nil},
		{"a/gone", []string{"a"}},
		{"a/gone", []string{"a"}},
	} {
		r.opened = nil
		if err := folders.MkdirAll(filepath.FromSlash(c.folder), 0o700); err != nil {
			t.Fatal(err)
		}
		for i, name := range r.opened {
			r.opened[i] = filepath.ToSlash(name)
		}
		if diff := cmp.Diff(c.want, r.opened); diff != "" {
			t.Errorf("%s: synced (-want +got):\n%s", c.folder, diff)
		}
		if c.folder == "a/gone" {
			_ = root.Remove(c.folder)
		}
	}
}

// A folder that may be entered and written to, but not listed, cannot be opened.
func TestAFolderThatNobodyMayListIsNoError(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	folders := &Folders{Root: closed{root}}
	if err := folders.MkdirAll("a/b", 0o700); err != nil {
		t.Error(err)
	}
	if err := folders.MkdirAll("/a/b", 0o700); err == nil {
		t.Error("a folder outside of the root is made")
	}
}

// closed fails to open anything: tests may run as root, whom no mode stops.
type closed struct{ *os.Root }

func (closed) Open(string) (*os.File, error) { return nil, fs.ErrPermission }
