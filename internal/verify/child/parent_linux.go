package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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

// standsStill reports whether all threads of a process have been stopped.
func standsStill(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		// NUMBER (NAME) STATE …, and a name may have anything in it. A thread that cannot be read has just ended.
		if err != nil || !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T")) {
			return false, nil
		}
	}
	return true, nil
}
