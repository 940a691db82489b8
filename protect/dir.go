package protect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/posthaste-dev/posthaste/internal/durable"
)

// Dir is a [Store] in a folder that all processes share. Each file is written next to its destination, synced and
// renamed, so that a file at its destination is always complete.
type Dir struct {
	root    *os.Root
	folders durable.Folders
}

// OpenDir opens a folder, creating it if necessary.
func OpenDir(folder string) (*Dir, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	return &Dir{root: root, folders: durable.Folders{Root: root}}, nil
}

// Close closes the folder.
func (d *Dir) Close() error { return d.root.Close() }

// Put stores content under name. Once it returns nil, the content and its name survive a power cut.
func (d *Dir) Put(ctx context.Context, name string, content []byte) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	name = filepath.FromSlash(path.Clean(name))
	if err := d.folders.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	beside := fmt.Sprintf("%s.%s.part", name, rand.Text())
	f, err := d.root.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = d.root.Rename(beside, name)
	}
	if err != nil {
		return errors.Join(err, d.root.Remove(beside))
	}
	return durable.Sync(d.root, filepath.Dir(name))
}

// Get returns the content stored under name.
func (d *Dir) Get(ctx context.Context, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return d.root.ReadFile(filepath.FromSlash(path.Clean(name)))
}
