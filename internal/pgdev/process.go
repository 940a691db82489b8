package pgdev

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
)

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid once done is closed
}

// launch starts cmd so that it dies with us. On Linux the kernel signals a child when the thread that created it ends,
// not the process; so this goroutine keeps its thread for as long as the child lives.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		dieWithParent(cmd.SysProcAttr)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		unwatch := watchParent(cmd)
		started <- nil
		p.err = cmd.Wait()
		unwatch()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// endOf returns the error for a process that ended although it should not have.
func endOf(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail returns what a file contains from an offset on, at most its last 4 KiB. It leaves out the lines that sessions of
// a killed server write while the next server starts: hundreds of them would hide why that one did not start.
func tail(path string, from int64) []byte {
	const most, read = 4 << 10, 1 << 20
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	if size, err := file.Seek(0, io.SeekEnd); err == nil {
		from = max(from, size-read)
	}
	content, _ := io.ReadAll(io.NewSectionReader(file, from, read))
	var kept []byte
	for line := range bytes.Lines(content) {
		if !bytes.Contains(line, []byte("unexpected postmaster exit")) {
			kept = append(kept, line...)
		}
	}
	return kept[max(0, len(kept)-most):]
}

// indent sets a program's output apart from the sentence to which it is appended.
func indent(output []byte) string {
	output = bytes.TrimSpace(output)
	if len(output) == 0 {
		return ""
	}
	return "\n    " + string(bytes.ReplaceAll(output, []byte("\n"), []byte("\n    ")))
}
