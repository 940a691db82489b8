package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/client"
)

// An act by filter is asked for until the API says that there are no more.
func TestAnActOnManyIsMadeInParts(t *testing.T) {
	t.Parallel()
	c := served(t, nil)
	for _, n := range []int{1000, 50} {
		if _, err := c.EnqueueBatch(t.Context(), slices.Repeat([]client.NewJob{{Kind: "mail", Hold: true}}, n)); err != nil {
			t.Fatal(err)
		}
	}
	var parts []int
	for part, err := range client.InParts(t.Context(), client.Bulk{Filter: &client.JobFilter{Kind: "mail", Status: []string{"created"}}, DryRun: true, Reason: "to see"}, c.ReleaseJobs) {
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part.Done)
	}
	if !slices.Equal(parts, []int{1000, 50}) {
		t.Errorf("parts = %v, want 1000 and 50", parts)
	}
}

// By ids it goes on with those that an answer had no time for, and ends with an error.
func TestWhatAnAnswerLeavesOutIsAskedForAgain(t *testing.T) {
	t.Parallel()
	var asked [][]string
	fail := errors.New("no")
	act := func(_ context.Context, b client.Bulk) (client.BulkResult, error) {
		asked = append(asked, b.IDs)
		switch len(asked) {
		case 1:
			return client.BulkResult{Done: 2, More: true, Jobs: []client.Outcome{{ID: "a"}, {ID: "b"}}}, nil
		case 2:
			return client.BulkResult{Done: 1, Jobs: []client.Outcome{{ID: "c"}}}, nil
		}
		return client.BulkResult{}, fail
	}
	done := 0
	for part, err := range client.InParts(t.Context(), client.Bulk{IDs: []string{"a", "b", "c"}}, act) {
		if done += part.Done; err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([][]string{{"a", "b", "c"}, {"c"}}, asked); diff != "" || done != 3 {
		t.Errorf("%d done, asked for (-want +got):\n%s", done, diff)
	}
	ends := 0
	for _, err := range client.InParts(t.Context(), client.Bulk{IDs: []string{"a"}}, act) {
		if ends++; !errors.Is(err, fail) {
			t.Errorf("error = %v", err)
		}
	}
	if ends != 1 {
		t.Errorf("an error came %d times", ends)
	}
}

func TestAnActGivesItsReason(t *testing.T) {
	t.Parallel()
	c := served(t, nil)
	job, err := c.Enqueue(t.Context(), client.NewJob{Kind: "mail"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CancelJob(client.WithReason(t.Context(), "too late"), job.ID); err != nil {
		t.Fatal(err)
	}
	page, err := c.AuditPage(t.Context(), client.AuditFilter{JobID: job.ID}, 0, "")
	if err != nil || len(page.Acts) != 1 || page.Acts[0].Reason != "too late" {
		t.Errorf("audit = %+v, %v", page, err)
	}
}
