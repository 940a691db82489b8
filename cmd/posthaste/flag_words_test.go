package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/invalid/invalidtest"
	"github.com/posthaste-dev/posthaste/operator"
)

// What package operator refuses is named by the flag that sets it.
func TestEveryFieldOfOperatorHasAFlag(t *testing.T) {
	t.Parallel()
	none := []string{
		"Filter.Contains", "Filter.Skip", "KeyFilter.After.Key", "KeyFilter.After.Queue", "SchedulesQuery.AfterName",
		"SchedulesQuery.Limit", "SeriesFilter.Kind", "SeriesFilter.Queue", "SeriesFilter.Since", "SeriesFilter.Step",
		"SeriesFilter.Until", "View.Name", "View.Query", "replaces", "key", "kind", "wanted",
	}
	fields := invalidtest.Fields(t, "../../operator")
	for _, field := range fields {
		if flagOf[field] == "" && !slices.Contains(none, field) {
			t.Errorf("flagOf lacks %s", field)
		}
	}
	for field := range flagOf {
		if !slices.Contains(fields, field) || slices.Contains(none, field) {
			t.Errorf("flagOf has %s, which package operator refuses nowhere, or no command sets", field)
		}
	}
}

func TestAMistakeInAFilterIsInTheWordsOfFlags(t *testing.T) {
	t.Parallel()
	err := operator.OperationSpec{
		Act: operator.DismissLetters, PerSecond: 1, Filter: operator.DeadLetterFilter{Kind: "\x00", Queue: "\xff"},
	}.Validate()
	want := "start: --rate is not for a dismissal\n--kind is not valid UTF-8, or has a NUL\n" +
		"--queue is not valid UTF-8, or has a NUL"
	if got := inFlagWords(fmt.Errorf("start: %w", err)).Error(); got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
	other := errors.New("DeadLetterFilter.Kind is somewhere else")
	if got := inFlagWords(other); got != other {
		t.Errorf("another error became %v", got)
	}
}
