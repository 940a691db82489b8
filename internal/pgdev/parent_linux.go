package pgdev

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel shut the server down, at once, when we die.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// watchParent does nothing: the kernel watches us.
func watchParent(*exec.Cmd) (unwatch func()) { return func() {} }
