package main

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to three and a half times what is live before it is collected.
// A dispatcher keeps little alive (some megabytes) and drops much, so with Go's
// default of 100 it collects many times a second: at full speed that was a third
// of its CPU time (7.2 against 4.8 µs a job). docs/benchmarks.md has the memory.
const gcPercent = 250

// tuneGarbage leaves GOGC alone where somebody set it.
func tuneGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
