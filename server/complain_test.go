package server

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// With the API and the console in one process, looks fail twice a second for as long as the database is away.
func TestLooksThatFailAreLoggedOnceInAWhile(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	complain := complainer(slog.New(slog.NewTextHandler(&logged, nil)))
	for range 100 {
		complain(t.Context(), errors.New("the database is away"))
	}
	complain(t.Context(), errors.New("the schema is gone"))
	if text := logged.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "away") || !strings.Contains(text, "gone") {
		t.Errorf("logged %s, want a line of each", text)
	}
}
