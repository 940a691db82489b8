package listener

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func setUserTimeout(conn syscall.RawConn) {
	_ = conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
