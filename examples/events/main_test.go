package main

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// It ends with an error if an event had its effect twice, or not at all.
func TestEveryEventHasItsEffectOnce(t *testing.T) {
	t.Setenv("DATABASE_URL", pgtest.URL(t))
	if err := run(t.Context(), 300); err != nil {
		t.Error(err)
	}
}
