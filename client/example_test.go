package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/client"
)

// How does a service without the database enqueue a job, exactly once, and look what
// became of the others?
func Example() {
	example := func(ctx context.Context, token string) error {
		c, err := client.New("https://jobs.example.com", client.Config{Token: token})
		if err != nil {
			return err
		}
		job := client.NewJob{Kind: "receipt.send", Payload: map[string]any{"orderId": 7}, IdempotencyKey: "receipt-7"}
		accepted, err := c.Enqueue(ctx, job) // repeated by itself if no answer comes
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == client.CodeInvalidInput {
			fmt.Println(p.Errors) // each with its place: #/payload/to, line 3, …
		}
		for failed, err := range c.Jobs(ctx, client.JobFilter{Kind: "receipt.send", Status: []string{"failed", "dead"}}) {
			if err != nil {
				return err
			}
			fmt.Println(failed.ID, failed.Error.Code)
		}
		fmt.Println(accepted.ID)
		return err
	}
	_ = example
}

// What docs/reference/api.md shows is the example, which compiles.
func TestTheDocumentationShowsTheExample(t *testing.T) {
	doc, err := os.ReadFile("../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(doc), "```go\n")
	shown, _, ended := strings.Cut(shown, "```")
	if !found || !ended {
		t.Fatal("docs/reference/api.md has no example in Go")
	}
	for line := range strings.Lines(shown) {
		if !strings.Contains(string(source), strings.TrimSpace(line)) {
			t.Errorf("docs/reference/api.md shows %q, which is not in the example", line)
		}
	}
}
