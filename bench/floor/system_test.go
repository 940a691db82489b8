package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// The floor passes the arguments of our statements by their numbers, which no compiler checks.
func TestTheStatementsTakeWhatTheFloorPasses(t *testing.T) {
	for statement, arguments := range map[string]int{sqlgen.ClaimJobs: 13, sqlgen.SettleInPlace: 3} {
		last, next := fmt.Sprintf("$%d", arguments), fmt.Sprintf("$%d", arguments+1)
		if !strings.Contains(statement, last) || strings.Contains(statement, next) {
			t.Errorf("want %d arguments, and what claim and settle pass, in\n%s", arguments, statement)
		}
	}
}
