package api_test

import (
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
