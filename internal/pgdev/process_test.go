package pgdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server that is started right after a kill may find the memory of sessions that have not ended yet, and is then
// tried again. It logs that before all these sessions log their ends.
func TestWhatKilledSessionsSayHidesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	const before = "LOG:  before\n"
	log := before + "FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use\n" +
		strings.Repeat("FATAL:  terminating connection due to unexpected postmaster exit\n", 500)
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(path, int64(len(before)))
	if err := errors.New(string(got)); !heldByPredecessor(err) {
		t.Errorf("the end of the log is %q, want why the server did not start", got)
	}
	if strings.Contains(string(got), "before") {
		t.Errorf("the end of the log is %q, want what comes after the offset", got)
	}
}

func TestTheEndOfALogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	var log strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&log, "LOG:  line %d\n", n)
	}
	if err := os.WriteFile(path, []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 0); len(got) > 4<<10 || !strings.HasSuffix(string(got), "line 999\n") {
		t.Errorf("the end of the log has %d bytes and ends with %q, want its last 4 KiB", len(got), got[max(0, len(got)-20):])
	}
}
