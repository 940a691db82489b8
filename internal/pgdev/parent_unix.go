//go:build darwin || freebsd

package pgdev

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func dieWithParent(*syscall.SysProcAttr) {}

// watchParent starts a shell that waits for the end of a pipe whose other end only we hold, and then shuts the server
// down at once.
func watchParent(server *exec.Cmd) (unwatch func()) {
	r, w, err := os.Pipe()
	if err != nil {
		return func() {}
	}
	watcher := exec.Command("/bin/sh", "-c", `read _; kill -QUIT "$0"`, strconv.Itoa(server.Process.Pid))
	watcher.Stdin = r
	watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: server.SysProcAttr.Credential}
	err = watcher.Start()
	r.Close()
	if err != nil {
		w.Close()
		return func() {}
	}
	return func() {
		_ = watcher.Process.Kill() // first, since the end of the pipe would make it act
		_ = watcher.Wait()
		w.Close()
	}
}
