//go:build !linux || !amd64

package fault

import (
	"errors"
	"time"
)

// Clock is the wall clock of one process. It exists only on Linux on amd64.
type Clock struct{}

// TakeClock returns an error.
func TakeClock(int) (*Clock, error) {
	return nil, errors.New("only on Linux on amd64 can a process be given a clock of its own")
}

// Set does nothing.
func (c *Clock) Set(time.Duration) error { return nil }

// Close does nothing.
func (c *Clock) Close() error { return nil }
