package pgdev

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// unpack writes the archive's package/native to dir, which it creates. It uses an [os.Root], so that no name in the
// archive leads out of dir.
func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// Modes are set again after creation: the server may run as another user, and must be able to read the files
	// whatever our umask is.
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	for entries := tar.NewReader(plain); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return link(root)
		}
		if err != nil {
			return err
		}
		name, native := strings.CutPrefix(path.Clean(entry.Name), "package/native/")
		if !native || entry.Typeflag != tar.TypeReg {
			continue
		}
		if err := unpackFile(root, name, entries, entry.FileInfo().Mode().Perm()|0o644); err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, content io.Reader, mode os.FileMode) error {
	if err := makeFolders(root, path.Dir(name)); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close(), root.Chmod(name, mode))
}

func makeFolders(root *os.Root, dir string) error {
	if _, err := root.Stat(dir); err == nil {
		return nil
	}
	if err := makeFolders(root, path.Dir(dir)); err != nil {
		return err
	}
	return errors.Join(root.Mkdir(dir, 0o755), root.Chmod(dir, 0o755))
}

// link creates the symbolic links, which npm archives cannot contain, and which the package lists in a file instead.
func link(root *os.Root) error {
	list, err := root.ReadFile("pg-symlinks.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(list, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		source, target := strings.TrimPrefix(l.Source, "native/"), strings.TrimPrefix(l.Target, "native/")
		to, err := filepath.Rel(path.Dir(target), source)
		if err != nil {
			return err
		}
		if err := makeFolders(root, path.Dir(target)); err != nil {
			return err
		}
		if err := root.Symlink(to, target); err != nil {
			return err
		}
	}
	return nil
}
