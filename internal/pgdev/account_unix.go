//go:build linux || darwin || freebsd

package pgdev

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is a user that runs Postgres in our place, because initdb and postgres refuse to run as root. A nil account
// is ourselves.
type account struct {
	name     string
	uid, gid int
}

// serverAccount returns the account that must run a server: nil or, if we are root, the owner of the data, else the
// user postgres, else nobody.
func serverAccount(data string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if about, err := os.Stat(data); err == nil {
		owner := about.Sys().(*syscall.Stat_t)
		return &account{name: strconv.Itoa(int(owner.Uid)), uid: int(owner.Uid), gid: int(owner.Gid)}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(found.Uid)
		gid, err2 := strconv.Atoi(found.Gid)
		if err1 == nil && err2 == nil {
			return &account{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("root may not run Postgres, and there is no user postgres or nobody who could")
}

// own makes a the owner of path.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// reaches reports whether a may enter dir, by owners and modes.
func (a *account) reaches(dir string) bool {
	if a == nil {
		return true
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		about, err := os.Stat(dir)
		if err != nil {
			return false
		}
		owner, mode := about.Sys().(*syscall.Stat_t), about.Mode()
		switch {
		case int(owner.Uid) == a.uid:
			mode >>= 6
		case int(owner.Gid) == a.gid:
			mode >>= 3
		}
		if mode&1 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// attributes makes a command run as a, in a process group of its own: Ctrl-C at the terminal reaches only us, and we
// stop the server after its clients.
func (a *account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// ours reports whether only we may write to dir.
func ours(dir string) bool {
	about, err := os.Lstat(dir)
	if err != nil || !about.IsDir() {
		return false
	}
	return int(about.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() && about.Mode()&0o022 == 0
}

// locks says whether tryLock locks anything on this system.
const locks = true

// tryLock locks file, until it is closed or the process ends, and reports whether it could.
func tryLock(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func (p *process) signal(_ string, sig syscall.Signal) error {
	return p.cmd.Process.Signal(sig)
}
