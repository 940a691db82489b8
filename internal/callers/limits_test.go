package callers

import (
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A tenant has one share, whichever names it uses; the installation's own programs and people have one each.
func TestNamesOfATenantHaveOneShare(t *testing.T) {
	t.Parallel()
	tenant, other := outbox.ID{1}, outbox.ID{2}
	for name, c := range map[string]struct {
		a, b access.Principal
		same bool
	}{
		"two names of a tenant":           {access.Principal{Name: "a", Tenant: tenant}, access.Principal{Name: "b", Tenant: tenant}, true},
		"a name of two tenants":           {access.Principal{Name: "a", Tenant: tenant}, access.Principal{Name: "a", Tenant: other}, false},
		"two names of the root tenant":    {access.Principal{Name: "a", Tenant: outbox.RootTenant}, access.Principal{Name: "b", Tenant: outbox.RootTenant}, false},
		"two tokens of one name":          {access.Principal{Name: "a", Tenant: outbox.RootTenant}, access.Principal{Name: "a", Tenant: outbox.RootTenant}, true},
		"operators":                       {access.Principal{Name: "a", Tenant: tenant, AllTenants: true}, access.Principal{Name: "b", Tenant: tenant, AllTenants: true}, false},
		"an operator beside his tenant's": {access.Principal{Name: "a", Tenant: tenant, AllTenants: true}, access.Principal{Name: "a", Tenant: tenant}, false},
	} {
		if got := Of(c.a) == Of(c.b); got != c.same {
			t.Errorf("%s: one share is %t, want %t", name, got, c.same)
		}
	}
}

// Each name has a rate of its own.
func TestEachNameHasItsOwnRate(t *testing.T) {
	t.Parallel()
	l, tenant := NewLimits(0.01), outbox.ID{1}
	for _, name := range []string{"a", "b"} {
		if wait := l.Take(access.Principal{Name: name, Tenant: tenant}); wait != 0 {
			t.Errorf("the first request of %s waits %d s", name, wait)
		}
		if l.Take(access.Principal{Name: name, Tenant: tenant}) == 0 {
			t.Errorf("the second request of %s does not wait", name)
		}
	}
}
