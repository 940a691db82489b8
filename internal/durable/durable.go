// Package durable creates folders that survive a power failure. Syncing a file is not enough for that: its name is in
// its folder, and the folder's name is in its parent.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Root has the methods of an [os.Root] that this package uses.
type Root interface {
	MkdirAll(name string, perm fs.FileMode) error
	Stat(name string) (fs.FileInfo, error)
	Open(name string) (*os.File, error)
}

// mostKnown is how many folders are remembered.
const mostKnown = 1000

// Folders creates folders in a root. Its methods may be called concurrently.
type Folders struct {
	Root Root

	mu    sync.Mutex
	known map[string]bool // their names are synced, and those of the folders above them
}

// MkdirAll creates a folder and its parents. When it returns nil the folder is durable, even if it existed before:
// another process may have created it and died before it synced it, so MkdirAll syncs everything once that this process
// has not synced. It leaves a parent that may not be listed to the system. What is put into the folder is not durable
// until [Sync].
func (f *Folders) MkdirAll(folder string, perm fs.FileMode) error {
	var unknown []string
	for at := filepath.Clean(folder); at != filepath.Dir(at) && !f.knows(at); at = filepath.Dir(at) {
		unknown = append(unknown, at)
	}
	if len(unknown) == 0 {
		return nil
	}
	if err := f.Root.MkdirAll(folder, perm); err != nil {
		return err
	}
	for _, at := range unknown {
		if err := Sync(f.Root, filepath.Dir(at)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || len(f.known) > mostKnown {
		f.known = map[string]bool{}
	}
	for _, at := range unknown {
		f.known[at] = true
	}
	return nil
}

// knows reports whether a folder was synced and still exists: a folder that was created again is synced again.
func (f *Folders) knows(folder string) bool {
	f.mu.Lock()
	known := f.known[folder]
	f.mu.Unlock()
	if !known {
		return false
	}
	_, err := f.Root.Stat(folder)
	return err == nil
}

// Sync makes the names in a folder durable, as far as the system can.
func Sync(root Root, folder string) error {
	f, err := root.Open(folder)
	if err != nil {
		return fmt.Errorf("open the folder: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	return nil
}
