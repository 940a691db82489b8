//go:build !linux

package listener

import "syscall"

// setUserTimeout does nothing: only Linux has the option.
func setUserTimeout(syscall.RawConn) {}
