package pgdev

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel shut the server down, at once, when we die.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }

// watchParent has nothing to add to what the kernel does.
func watchParent(*exec.Cmd) (unwatch func()) { return func() {} }
