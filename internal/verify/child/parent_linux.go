package child

import (
	"fmt"
	"syscall"
)

// dieWithParent has the kernel kill the process when the thread that started it
// ends; see launch.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// standAtExec has the process stop before its first instruction. Only the thread
// that starts it may speak to it then.
func standAtExec(attr *syscall.SysProcAttr) { attr.Ptrace = true }

func awaitExec(pid int) error {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return fmt.Errorf("wait for the exec: %w", err)
	}
	if !status.Stopped() {
		return fmt.Errorf("the process does not stand at its exec: %v", status)
	}
	return nil
}

func goOn(pid int) error { return syscall.PtraceDetach(pid) }
