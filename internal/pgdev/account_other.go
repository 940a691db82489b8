//go:build !(linux || darwin || freebsd)

package pgdev

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// account is not used on this system: Postgres runs as ourselves.
type account struct{ name string }

func serverAccount(string) (*account, error)      { return nil, nil }
func (*account) own(string) error                 { return nil }
func (*account) reaches(string) bool              { return true }
func (*account) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
func dieWithParent(*syscall.SysProcAttr)          {}
func ours(string) bool                            { return true }
func tryLock(*os.File) bool                       { return true }
func watchParent(*exec.Cmd) (unwatch func())      { return func() {} }

// locks says whether tryLock locks anything on this system.
const locks = false

// signal uses pg_ctl, which can reach a server on a system without signals.
func (p *process) signal(bin string, sig syscall.Signal) error {
	name := map[syscall.Signal]string{syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT"}[sig]
	if name == "" {
		return p.cmd.Process.Kill()
	}
	return exec.Command(program(bin, "pg_ctl"), "kill", name, strconv.Itoa(p.cmd.Process.Pid)).Run()
}
