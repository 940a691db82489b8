package api_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/kinds"
)

type sendReceipt struct {
	OrderID int64  `json:"orderId"`
	To      string `json:"to" format:"email"`
}

func (sendReceipt) Kind() string { return "receipt.send" }

func withKinds(t *testing.T) *rig {
	t.Helper()
	return newRig(t, addKinds(t))
}

func addKinds(t *testing.T) func(*api.Config) {
	return func(c *api.Config) {
		c.Kinds = new(kinds.Schemas)
		if err := kinds.AddType[sendReceipt](c.Kinds); err != nil {
			t.Fatal(err)
		}
		if err := c.Kinds.Add("mail", []byte(`{"type": "object", "maxProperties": 2}`)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPayloadsAreCheckedByTheirKindsSchema(t *testing.T) {
	t.Parallel()
	r := withKinds(t)
	const good = `{"kind":"receipt.send","payload":{"orderId":7,"to":"ada@example.org"}}`
	r.enqueue(good)
	r.enqueue(`{"kind":"other","payload":[{}]}`)
	for body, pointers := range map[string][]string{
		`{"kind":"receipt.send","payload":{"orderId":"7","to":"ada"}}`:                   {"#/payload/orderId", "#/payload/to"},
		`{"kind":"receipt.send"}`:                                                        {"#/payload/orderId", "#/payload/to"},
		`{"kind":"receipt.send","payload":null}`:                                         {"#/payload"},
		`{"kind":"receipt.send","payload":{"orderId":7,"to":"ada@example.org","a/b":1}}`: {"#/payload/a~1b"},
		`{"kind":"mail","payload":{"a":1,"b":2,"c":3}}`:                                  {"#/payload"},
		`{"kind":"receipt.send","payload":{"orderId":1e400,"to":"ada@example.org"}}`:     nil, // a number that JSON has
	} {
		answer := r.post("/jobs", body)
		if pointers == nil {
			continue
		}
		p := answer.problem(422, "invalid_input")
		got := map[string]bool{}
		for _, fault := range p.Errors {
			got[fault.Pointer] = true
		}
		want := map[string]bool{}
		for _, pointer := range pointers {
			want[pointer] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
		p = r.postBatch(good+"\n\n"+body).problem(422, "invalid_input")
		if len(p.Errors) != len(pointers) || p.Errors[0].Line != 3 {
			t.Errorf("%s in a batch: errors = %+v, want line 3", body, p.Errors)
		}
	}
	var n int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE kind IN ('receipt.send', 'mail')`).Scan(&n); err != nil || n > 2 {
		t.Errorf("%d jobs are stored, %v", n, err)
	}
}

// A dead letter's new payload is held to the schema like the first one was.
func TestAnEditedPayloadIsCheckedByItsKindsSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := rigOn(t, db, func(c *api.Config) { c.Pool = db }, addKinds(t)).as("operator-a")
	id := r.enqueue(`{"kind":"receipt.send","payload":{"orderId":7,"to":"ada@example.org"}}`)
	r.kill(id)
	p := r.post("/dead-letters/"+id+"/replay", `{"payload":{"orderId":"7","to":"ada@example.org"}}`).problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/payload/orderId" {
		t.Errorf("errors = %+v, want one of #/payload/orderId", p.Errors)
	}
	if job := r.getJob(id); job.Status != "dead" {
		t.Errorf("after the refusal it is %s", job.Status)
	}
	r.post("/dead-letters/"+id+"/replay", `{"payload":{"orderId":8,"to":"ada@example.org"}}`).want(200, nil)
}

func TestKindsAreListedWithTheirSchemas(t *testing.T) {
	t.Parallel()
	var listed struct{ Kinds []api.Kind }
	withKinds(t).get("/kinds").want(200, &listed)
	if len(listed.Kinds) != 2 || listed.Kinds[0].Kind != "mail" || listed.Kinds[1].Kind != "receipt.send" {
		t.Fatalf("kinds = %+v", listed.Kinds)
	}
	var schema struct {
		Required   []string
		Properties map[string]struct{ Type, Format string }
	}
	if err := json.Unmarshal(listed.Kinds[1].Schema, &schema); err != nil || len(schema.Required) != 2 || schema.Properties["to"].Format != "email" {
		t.Errorf("schema = %s, %v", listed.Kinds[1].Schema, err)
	}
	if body := newRig(t).get("/kinds").want(200, nil).Body.String(); body != "{\"kinds\":[]}\n" {
		t.Errorf("without schemas: %s", body)
	}
}
