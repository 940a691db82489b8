package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// disk is a file system of a given size.
type disk struct{ path string }

// newDisk mounts a disk on a folder that the user who runs Postgres can reach.
func newDisk(name string, mib int) (*disk, error) {
	path, err := os.MkdirTemp("", "posthaste-verify-"+name+"-")
	if err != nil {
		return nil, err
	}
	size := fmt.Sprintf("size=%dm,mode=0755", mib)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", size, "posthaste-verify",
		path).CombinedOutput(); err != nil {
		return nil, errors.Join(notPossible(fmt.Sprintf("mounting a tmpfs: %v: %s", err, bytes.TrimSpace(out))),
			os.Remove(path))
	}
	return &disk{path}, os.Chmod(path, 0o755)
}

func (d *disk) ballast() string { return filepath.Join(d.path, "ballast") }

// fill writes a file until the disk has no room left.
func (d *disk) fill() error {
	file, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, portion := range [][]byte{make([]byte, 1<<20), make([]byte, 4<<10)} {
		for err == nil {
			_, err = file.Write(portion)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		err = nil
	}
	return nil
}

// free removes the file that fill wrote.
func (d *disk) free() error { return os.Remove(d.ballast()) }

// unmount removes the disk and everything on it.
func (d *disk) unmount() error {
	if out, err := exec.Command("umount", d.path).CombinedOutput(); err != nil {
		return fmt.Errorf("unmount %s: %w: %s", d.path, err, bytes.TrimSpace(out))
	}
	return os.Remove(d.path)
}

// smallDisks mounts a small disk for the server's data and another for its WAL. It returns the data folder, and a
// function that unmounts both.
func (r *Run) smallDisks() (folder string, giveBack func() error, err error) {
	if r.data, err = newDisk("data", 512); err != nil {
		return "", nil, err
	}
	if r.wal, err = newDisk("wal", 160); err != nil {
		return "", nil, errors.Join(err, r.data.unmount())
	}
	return filepath.Join(r.data.path, "pg"), func() error { return errors.Join(r.wal.unmount(), r.data.unmount()) }, nil
}

// moveWAL stops the server, moves its WAL to the disk for it, and starts the server again.
func (r *Run) moveWAL(ctx context.Context) error {
	if err := r.Server.Kill9(); err != nil {
		return err
	}
	from := filepath.Join(r.data.path, "pg", "data", "pg_wal")
	to := filepath.Join(r.wal.path, "pg_wal")
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy pg_wal: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := errors.Join(os.RemoveAll(from), os.Symlink(to, from)); err != nil {
		return err
	}
	return r.Server.StartAgain(ctx)
}
