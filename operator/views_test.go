package operator_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A person has views of their own, and sees those that are shared in the tenant.
func TestViewsAreOfAPersonOrShared(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tenant := outbox.ID{0: 0xa, 15: 1}
	ada, bob := o.As(operator.Actor{Name: "ada"}), o.As(operator.Actor{Name: "bob"})
	save := func(o *operator.Operator, tenant outbox.ID, name, query string, shared bool) {
		t.Helper()
		if err := o.SaveView(t.Context(), tenant, operator.View{Name: name, Query: query, Shared: shared}, ""); err != nil {
			t.Fatal(err)
		}
	}
	views := func(o *operator.Operator, tenant outbox.ID) (list []string) {
		t.Helper()
		found, err := o.Views(t.Context(), tenant)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range found {
			if w.SavedAt.IsZero() {
				t.Errorf("%s was saved at no time", w.Name)
			}
			list = append(list, fmt.Sprintf("%s %s %t %s", w.Name, w.Query, w.Shared, w.SavedBy))
		}
		return list
	}
	save(ada, tenant, "late", "status=pending", false)
	save(ada, tenant, "late", "status=retrying", false) // in its place
	save(bob, tenant, "late", "kind=a", true)
	save(bob, tenant, "late", "kind=b", true)
	save(bob, tenant, "own", "queue=mail", false)
	save(ada, outbox.ID{}, "of all tenants", "kind=c", true)
	for _, c := range []struct {
		o      *operator.Operator
		tenant outbox.ID
		want   []string
	}{
		{ada, tenant, []string{"late status=retrying false ada", "late kind=b true bob"}},
		{bob, tenant, []string{"own queue=mail false bob", "late kind=b true bob"}},
		{bob, outbox.ID{}, []string{"of all tenants kind=c true ada"}},
	} {
		if got := views(c.o, c.tenant); !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}

	for _, missing := range []error{
		bob.DeleteView(t.Context(), tenant, operator.View{Name: "nothing", Shared: true}),
		ada.DeleteView(t.Context(), tenant, operator.View{Name: "own"}),
		ada.DeleteView(t.Context(), outbox.ID{}, operator.View{Name: "late", Shared: true}),
	} {
		if !errors.Is(missing, operator.ErrViewNotFound) {
			t.Errorf("got %v, want that there is none", missing)
		}
	}
	for _, view := range []operator.View{{Name: "late", Query: "kind=b", Shared: true}, {Name: "late", Query: "status=retrying"}} {
		if err := ada.DeleteView(t.Context(), tenant, view); err != nil {
			t.Fatal(err)
		}
	}
	if got := views(ada, tenant); len(got) > 0 {
		t.Errorf("ada still has %q", got)
	}
	var acts string
	if err := db.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', actor, act, tenant_id, target, before->>'query', after->>'query'), ', ' ORDER BY id) FROM outbox.audit`).Scan(&acts); err != nil {
		t.Fatal(err)
	}
	of := " " + tenant.String() + " late "
	if want := "bob view.share" + of + "kind=a, bob view.share" + of + "kind=a kind=b, ada view.share of all tenants kind=c, ada view.delete" + of + "kind=b"; acts != want {
		t.Errorf("the audit has %s, want %s", acts, want)
	}
}

// A shared view of another person is replaced, and any view deleted, only by those who know what it stands for: it may
// have been shared again since they looked.
func TestAViewThatHasChangedIsKept(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tenant := outbox.NewID()
	ada, bob := o.As(operator.Actor{Name: "ada"}), o.As(operator.Actor{Name: "bob"})
	stuck := func(query string) operator.View { return operator.View{Name: "stuck", Query: query, Shared: true} }
	for i, c := range []struct {
		err, want error
	}{
		{bob.SaveView(t.Context(), tenant, stuck("kind=a"), ""), nil},
		{ada.SaveView(t.Context(), tenant, stuck("kind=b"), ""), operator.ErrViewChanged},
		{bob.SaveView(t.Context(), tenant, stuck("kind=c"), ""), nil}, // it is bob's own
		{ada.SaveView(t.Context(), tenant, stuck("kind=b"), "kind=a"), operator.ErrViewChanged},
		{ada.DeleteView(t.Context(), tenant, stuck("kind=a")), operator.ErrViewChanged},
		{ada.SaveView(t.Context(), tenant, stuck("kind=b"), "kind=c"), nil},
		{bob.DeleteView(t.Context(), tenant, stuck("kind=b")), nil},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("step %d: got %v, want %v", i, c.err, c.want)
		}
	}
	var acts string
	if err := db.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', actor, act, before->>'query', after->>'query'), ', ' ORDER BY id) FROM outbox.audit`).Scan(&acts); err != nil {
		t.Fatal(err)
	}
	if want := "bob view.share kind=a, bob view.share kind=a kind=c, ada view.share kind=c kind=b, bob view.delete kind=b"; acts != want {
		t.Errorf("the audit has %s, want %s", acts, want)
	}
}

func TestViewsAreBounded(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	for n := range operator.MaxViews {
		if err := o.SaveView(t.Context(), outbox.ID{}, operator.View{Name: fmt.Sprint(n), Query: "kind=a"}, ""); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"7": false, "one more": true} {
		err := o.SaveView(t.Context(), outbox.ID{}, operator.View{Name: name, Query: "kind=b"}, "")
		if errors.Is(err, operator.ErrTooManyViews) != want {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := o.SaveView(t.Context(), outbox.ID{}, operator.View{Name: "one more", Query: "kind=b", Shared: true}, ""); err != nil {
		t.Errorf("one that is shared: %v", err)
	}
	for _, bad := range []operator.View{
		{Query: "kind=a"}, {Name: strings.Repeat("a", 101), Query: "kind=a"}, {Name: "a\x00", Query: "kind=a"}, {Name: "a"}, {Name: "a", Query: strings.Repeat("a", 5000)},
	} {
		invalid := (*outbox.InvalidError)(nil)
		if err := o.SaveView(t.Context(), outbox.ID{}, bad, ""); !errors.As(err, &invalid) {
			t.Errorf("%.20q %.20q: got %v, want it refused", bad.Name, bad.Query, err)
		}
	}
}
