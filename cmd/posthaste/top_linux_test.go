package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// terminal makes a terminal of its own, and returns our end and the command's.
func terminal(t *testing.T) (ours, its *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this machine makes no terminals: there is no /dev/ptmx")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() }) // it may be closed already
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if its, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = its.Close() })
	return ours, its
}

func resize(t *testing.T, f *os.File, columns, lines uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		t.Fatal(err)
	}
}

func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	ok(t, e, "enqueue", "greet")
	for name, key := range map[string]string{"q": "q", "Ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			ours, its := terminal(t)
			resize(t, ours, 100, 30)
			before, err := unix.IoctlGetTermios(int(its.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self, "top", "--interval", "100ms")
			cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL="+e["DATABASE_URL"], "TERM=xterm-256color")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = its, its, its
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }() // it has ended unless the test failed
			drawn := new(lockedBuffer)
			go func() { // ends when our end is closed
				var b [4096]byte
				for {
					n, err := ours.Read(b[:])
					_, _ = drawn.Write(b[:n])
					if err != nil {
						return
					}
				}
			}()
			awaitText(t, "1 pending", drawn.String)
			awaitText(t, "QUEUE", drawn.String)
			resize(t, ours, 60, 3)
			awaitText(t, "more lines", drawn.String) // it hears of the new size by a signal
			if _, err := ours.WriteString(key); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("top ended with %v, want exit status 0", err)
			}
			const enter, leave = "\x1b[?1049h", "\x1b[?1049l"
			if all := awaitText(t, leave, drawn.String); strings.Count(all, enter) != strings.Count(all, leave) {
				t.Errorf("the alternate screen was entered %d times and left %d times", strings.Count(all, enter), strings.Count(all, leave))
			}
			after, err := unix.IoctlGetTermios(int(its.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			if *before != *after {
				t.Errorf("the terminal was %+v and is %+v", before, after)
			}
		})
	}
}
