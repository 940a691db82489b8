//go:build !(linux || darwin || freebsd)

package pgdev

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// account is never used here: Postgres runs as ourselves.
type account struct{ name string }

func serverAccount(string) (*account, error)      { return nil, nil }
func (*account) own(string) error                 { return nil }
func (*account) reaches(string) bool              { return true }
func (*account) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
func dieWithParent(*syscall.SysProcAttr)          {}
func ours(string) bool                            { return true }
func tryLock(*os.File) bool                       { return true }
func watchParent(*exec.Cmd) (unwatch func())      { return func() {} }

// locks says that tryLock means something here.
const locks = false

// signal goes through pg_ctl, which knows how to reach a server without signals.
func (p *process) signal(bin string, sig syscall.Signal) error {
	name := map[syscall.Signal]string{syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT"}[sig]
	if name == "" {
		return p.cmd.Process.Kill()
	}
	return exec.Command(program(bin, "pg_ctl"), "kill", name, strconv.Itoa(p.cmd.Process.Pid)).Run()
}
