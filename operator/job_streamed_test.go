package operator_test

import (
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Jobs of the root tenant and of another one, plain and keyed, open and closed: each says whether it is streamed.
func TestAJobTellsWhetherItIsStreamed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for name, options := range map[string]outbox.Options{
		"plain": {}, "keyed": {Key: outbox.KeyRules{Name: "k"}}, "another tenant's": {Tenant: outbox.ID{15: 7}}, "another tenant's, keyed": {Tenant: outbox.ID{15: 7}, Key: outbox.KeyRules{Name: "k"}},
	} {
		for _, streamed := range []bool{true, false} {
			options.Streamed = streamed
			id := enqueue(t, db, "mail", options)
			for _, state := range []string{"open", "closed"} {
				if got := job(t, o, id); got.Streamed != streamed {
					t.Errorf("%s, %s: it says streamed %t, want %t", name, state, got.Streamed, streamed)
				}
				var listed []operator.Job
				page, err := o.Jobs(t.Context(), operator.Filter{})
				if err != nil {
					t.Fatal(err)
				}
				for _, j := range page {
					if j.ID == id {
						listed = append(listed, j)
					}
				}
				if len(listed) != 1 || listed[0].Streamed != streamed {
					t.Errorf("%s, %s: the list says %+v, want streamed %t", name, state, listed, streamed)
				}
				var viewed bool
				if err := db.QueryRow(t.Context(), `SELECT streamed FROM outbox.`+state+`_jobs WHERE id = $1`, id).Scan(&viewed); err != nil || viewed != streamed {
					t.Errorf("%s: the view of %s jobs says streamed %t, %v; want %t", name, state, viewed, err, streamed)
				}
				if state == "open" {
					if _, err := o.Cancel(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}
