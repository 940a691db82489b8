package api_test

import (
	"slices"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/invalid/invalidtest"
)

// A client learns where its mistake is, whichever package finds it.
func TestEveryRefusedFieldHasAPlace(t *testing.T) {
	t.Parallel()
	none := []string{ // of what the API does not do
		"AuditHead", "View.Name", "View.Query", "replaces", "key", "kind", "wanted", "SinkTarget", "SinkTarget.Position",
		"SinkMove.To",
		"Options.Hold", "Options.Streamed", "Options.Tenant", "Raw.ContentType", "Event", "Event.Topic()",
		"EventOptions.Key", "EventOptions.Headers", "EventOptions.Serial", "Claimed.Result", "Options.Caller",
		"Options.Protect", "Key.MaxQueued", "Key.Sequence", // the last two are parts of names
	}
	var fields []string
	for _, folder := range []string{"../operator", "../schedule", "../outbox"} {
		fields = append(fields, invalidtest.Fields(t, folder)...)
	}
	for _, field := range fields {
		if _, known := api.FieldPlaces[field]; !known && !slices.Contains(none, field) {
			t.Errorf("%s has no place in the API", field)
		}
	}
}

func TestAMistakeIsWhereTheRouteTakesTheField(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	for _, c := range []struct {
		method, target, body string
		want                 []api.Fault // without their texts
	}{
		{"POST", "/jobs/replay", `{"kind":"relay:x","since":"2020-01-01T00:00:00Z"}`, []api.Fault{{Pointer: "#/kind"}}},
		{"POST", "/jobs/cancel", `{"filter":{"idPrefix":"zz"}}`, []api.Fault{{Pointer: "#/filter/idPrefix"}}},
		{"GET", "/jobs?id_prefix=zz", "", []api.Fault{{Parameter: "id_prefix"}}},
		{"POST", "/queues/-/pause", "", []api.Fault{{Parameter: "queue"}}},
		{
			"POST", "/operations", `{"act":"dismiss","filter":{"kind":"a"},"ratePerSecond":1,"edit":{"queue":"b"}}`,
			[]api.Fault{{Pointer: "#/ratePerSecond"}, {Pointer: "#/edit"}},
		},
	} {
		got := r.do(c.method, c.target, c.body).problem(422, "invalid_input").Errors
		for i := range got {
			got[i].Detail = ""
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s: %+v, want %+v", c.method, c.target, got, c.want)
		}
	}
}
