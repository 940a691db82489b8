package verify

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// Of what two releases log, the row permits exactly the errors after which processes retry: not a row that an old
// binary cannot scan, which has no SQLSTATE, and not a whole class of SQLSTATEs.
func TestOnlyListedErrorsAreRetries(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "w1.log")
	lines := `{"level":"INFO","msg":"dispatcher started"}
{"level":"WARN","msg":"claim failed","err":"FATAL: terminating connection due to administrator command (SQLSTATE 57P01)"}
{"level":"WARN","msg":"claim failed","err":"write tcp 127.0.0.1:5432: broken pipe"}
{"level":"ERROR","msg":"claim failed","err":"ERROR: deadlock detected (SQLSTATE 40P01)"}
{"level":"WARN","msg":"scan","err":"can't scan into dest[3] (col: queue): cannot scan NULL into *string"}
{"level":"WARN","msg":"in use","err":"ERROR: cannot drop the currently open database (SQLSTATE 55006)"}
{"level":"WARN","msg":"idle","err":"FATAL: idle session timeout (SQLSTATE 57P05)"}
{"level":"ERROR","msg":"panic"}
{"level":"WARN","msg":"no handler and no webhook: jobs are left alone"}
`
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := logged(&child.Process{Log: log}, unsolved)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range found {
		got = append(got, l.Msg)
	}
	if diff := cmp.Diff([]string{"scan", "in use", "idle", "panic"}, got); diff != "" {
		t.Errorf("errors that a retry does not solve (-want +got):\n%s", diff)
	}
}
