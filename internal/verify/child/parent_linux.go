package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent makes the kernel kill the process when the thread that started it ends; see launch.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// standAtExec makes the process stop before its first instruction. Until it goes on, only the thread that starts it may
// control it.
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

// standsStill reports whether all threads of a process have stopped.
func standsStill(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		// The format is NUMBER (NAME) STATE …, where NAME may contain anything. If the file cannot be read, the thread
		// has just ended.
		if err != nil || !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T")) {
			return false, nil
		}
	}
	return true, nil
}
