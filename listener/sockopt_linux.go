package listener

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout is best effort: without it, keepalive and the canary remain.
func setUserTimeout(network, _ string, conn syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
