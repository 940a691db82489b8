//go:build !linux

package child

import (
	"errors"
	"syscall"
)

func dieWithParent(*syscall.SysProcAttr) {}

func standAtExec(*syscall.SysProcAttr) {}

func awaitExec(int) error { return errors.New("only Linux lets a process be prepared") }

func goOn(int) error { return nil }

func standsStill(int) (bool, error) { return true, nil }
