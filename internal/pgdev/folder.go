package pgdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// folder holds one owned server: data, log and socket. The process that uses it holds a lock on the file "lock" in it,
// which ends with the process.
type folder struct {
	path      string
	temporary bool
	account   *account // runs initdb and postgres; nil means ourselves
	lock      *os.File
}

const temporaryPrefix = "posthaste-pg-"

func (f *folder) data() string { return filepath.Join(f.path, "data") }
func (f *folder) log() string  { return filepath.Join(f.path, "postgres.log") }

// openFolder creates or reopens the folder that o names, and locks it.
func openFolder(o Options) (*folder, error) {
	f := &folder{path: o.Dir, temporary: o.Dir == ""}
	var err error
	if f.temporary {
		err = f.makeTemporary(o.Fast)
	} else {
		err = f.openKept()
	}
	if err != nil {
		return nil, err
	}
	if f.lock, err = os.OpenFile(filepath.Join(f.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if !tryLock(f.lock) {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process", f.path), f.lock.Close())
	}
	return f, nil
}

func (f *folder) makeTemporary(fast bool) error {
	var err error
	if f.account, err = serverAccount(""); err != nil {
		return err
	}
	bases := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if fast && os.Getenv("TMPDIR") == "" {
		bases = append(memoryFolders(), bases...)
	}
	for _, base := range bases {
		if !f.account.reaches(base) {
			continue
		}
		sweep(base)
		if f.path, err = os.MkdirTemp(base, temporaryPrefix); err != nil {
			return err
		}
		return f.account.own(f.path)
	}
	return fmt.Errorf("no temporary folder that user %s can reach", f.account.name)
}

func (f *folder) openKept() error {
	var err error
	if f.path, err = filepath.Abs(f.path); err != nil {
		return err
	}
	if f.account, err = serverAccount(f.data()); err != nil {
		return err
	}
	_, err = os.Stat(f.path)
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return err
	}
	if !f.account.reaches(filepath.Dir(f.path)) {
		return fmt.Errorf("%s is out of reach of user %s, who must run Postgres because root may not: choose another folder", f.path, f.account.name)
	}
	if errors.Is(err, os.ErrNotExist) {
		return f.account.own(f.path)
	}
	if !f.account.reaches(f.path) {
		return fmt.Errorf("%s does not belong to user %s, who must run Postgres because root may not", f.path,
			f.account.name)
	}
	return nil
}

// agree sets the version that o asks for to that of existing data, and fails if o asks for another one.
func (f *folder) agree(o *Options) error {
	content, err := os.ReadFile(filepath.Join(f.data(), "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept := strings.TrimSpace(string(content))
	if o.Major != "" && o.Major != kept {
		return fmt.Errorf("%s holds data of PostgreSQL %s, not %s", f.path, kept, o.Major)
	}
	o.Major = kept
	return nil
}

// close releases the folder, and removes it if it is temporary.
func (f *folder) close() error {
	var err error
	if f.temporary {
		err = os.RemoveAll(f.path)
	}
	return errors.Join(err, f.lock.Close())
}

// sweep removes temporary folders whose process died before it removed them. A folder younger than a minute may not
// have its lock yet.
func sweep(base string) {
	if !locks {
		return
	}
	found, _ := filepath.Glob(filepath.Join(base, temporaryPrefix+"*"))
	for _, path := range found {
		lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if about, err := lock.Stat(); err == nil && time.Since(about.ModTime()) > time.Minute && tryLock(lock) {
			_ = os.RemoveAll(path) // it fails if the folder is another user's
		}
		lock.Close()
	}
}
