//go:build !linux

package integration

import "syscall"

func dieWithTest(*syscall.SysProcAttr) {}
