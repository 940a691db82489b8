package child

import "syscall"

// dieWithParent has the kernel kill the process when the thread that started it
// ends; see launch.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
