package api_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
)

func TestTheCommittedDescriptionIsTheAPIs(t *testing.T) {
	t.Parallel()
	now, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(now) != string(committed) {
		t.Error("api/openapi.json is not what the API is: run posthaste openapi > api/openapi.json, and see in the diff what changes for clients")
	}
}

// Each operation is in one group of the description, and each group has operations.
func TestEveryOperationHasATag(t *testing.T) {
	t.Parallel()
	text, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Tags  []struct{ Name, Description string }
		Paths map[string]map[string]struct{ Tags []string }
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	operations := map[string]int{}
	for path, methods := range spec.Paths {
		for method, op := range methods {
			if len(op.Tags) != 1 {
				t.Errorf("%s %s has the tags %q, want one", method, path, op.Tags)
			}
			for _, tag := range op.Tags {
				operations[tag]++
			}
		}
	}
	for _, tag := range spec.Tags {
		if operations[tag.Name] == 0 || tag.Description == "" {
			t.Errorf("the tag %s has %d operations and the description %q", tag.Name, operations[tag.Name], tag.Description)
		}
		delete(operations, tag.Name)
	}
	if len(operations) > 0 {
		t.Errorf("tags that are not declared: %v", operations)
	}
}
