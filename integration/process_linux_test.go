package integration

import "syscall"

// dieWithTest has the kernel kill the process when the thread that started it
// ends; see launch.
func dieWithTest(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
