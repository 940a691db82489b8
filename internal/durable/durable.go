// Package durable makes folders that outlive a power cut. To sync a file is not enough for that: its name is in its
// folder, and that folder's name in the one above.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Root is what is used of an [os.Root].
type Root interface {
	MkdirAll(name string, perm fs.FileMode) error
	Open(name string) (*os.File, error)
}

// MkdirAll makes a folder and those above it. When it returns nil the folder is in root for good, also if it was
// there before. What is put into it is not, until [Sync].
func MkdirAll(root Root, folder string, perm fs.FileMode) error {
	if err := root.MkdirAll(folder, perm); err != nil {
		return err
	}
	for folder = filepath.Clean(folder); folder != "."; {
		folder = filepath.Dir(folder)
		if err := Sync(root, folder); err != nil {
			return err
		}
	}
	return nil
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
