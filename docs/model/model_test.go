package model_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/posthaste-dev/posthaste/docs/model"
	"github.com/posthaste-dev/posthaste/internal/programtest"
)

var (
	// leases is how many a job may have: the states are 1.6 million with 3, and 7.5 with 4.
	leases = flag.Int("leases", 3, "leases of a job")
	// planted is set by make model.
	planted = flag.Bool("planted", false, "also explore the model with an error in it: each has to be found")
)

// needSpin leaves the model out where its tools are not installed, and CI does not require them: they are no part of
// what the product needs.
func needSpin(t *testing.T) {
	for _, tool := range []string{"spin", "cc"} {
		programtest.Find(t, "spin gcc", tool)
	}
}

// In no order of claims, extensions, settlements, expiries, operators' acts,
// crashes and pauses is a lease held twice, a job changed by who lost it, reopened
// or lost.
func TestTheLeaseModelHolds(t *testing.T) {
	needSpin(t)
	t.Parallel()
	result, err := model.Explore(t.Context(), t.TempDir(), "", *leases)
	if err != nil {
		t.Fatal(err)
	}
	if result.Violation != "" {
		t.Fatalf("the model breaks: %s\n%s", result.Violation, result.Trail)
	}
	if result.States < 1_000_000 {
		t.Errorf("states = %d: too few, the model must be stuck early", result.States)
	}
	t.Logf("%d states, no violation", result.States)
}

// A model that cannot fail says nothing: each planted error must break it.
func TestTheLeaseModelFindsPlantedErrors(t *testing.T) {
	if !*planted {
		t.Skip("this proves the model, not the protocol: make model runs it")
	}
	needSpin(t)
	t.Parallel()
	for _, bug := range model.Planted {
		t.Run(bug, func(t *testing.T) {
			result, err := model.Explore(t.Context(), t.TempDir(), bug, *leases)
			if err != nil {
				t.Fatal(err)
			}
			if result.Violation == "" {
				t.Errorf("not found in %d states", result.States)
			}
			t.Logf("found after %d states: %s", result.States, result.Violation)
		})
	}
}

// Every error that the model knows is in the list that is tried.
func TestEveryPlantedErrorIsTried(t *testing.T) {
	source, err := os.ReadFile("lease.pml")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#(?:ifdef |ifndef |if defined\(|elif defined\()([A-Z_]+)`).FindAllSubmatch(source, -1) {
		if name := string(m[1]); name != "MAX_LEASES" && name != "ACTS" {
			known[name] = true
		}
	}
	for name := range known {
		if !slices.Contains(model.Planted, name) {
			t.Errorf("%s is never tried", name)
		}
	}
	if len(known) != len(model.Planted) {
		t.Errorf("planted errors in lease.pml = %d, want %d", len(known), len(model.Planted))
	}
}
