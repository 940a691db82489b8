package api

import (
	"context"

	"github.com/posthaste-dev/posthaste/outbox"
)

// OfTenant is for routes that find by a name, which several tenants may use, and for lists.
type OfTenant struct {
	Tenant string `query:"tenant" json:"tenant,omitempty" format:"uuid" doc:"Tenant, for tokens of all tenants; other tokens are bound to their own"`
}

// These are the places of a tenant in a request.
var (
	inQuery  = Fault{Parameter: "tenant"}
	inFilter = Fault{Pointer: "#/filter/tenant"}
	inJobs   = Fault{Pointer: "#/jobs/tenant"}
)

// tenant returns the tenant that the request is for; zero means any, and only a principal of all tenants can ask for
// that. A caller that names another tenant than its own learns nothing: the request is refused before anything is read.
func (in OfTenant) tenant(ctx context.Context) (outbox.ID, error) { return in.tenantAt(ctx, inQuery) }

func (in OfTenant) tenantAt(ctx context.Context, place Fault) (outbox.ID, error) {
	own := within(ctx)
	if in.Tenant == "" {
		return own, nil
	}
	id, err := outbox.ParseID(in.Tenant)
	switch {
	case err != nil || id.IsZero(): // zero would mean any
		place.Detail = "is no tenant's id"
		return id, invalidInput.because("", place)
	case !own.IsZero() && id != own:
		return id, forbidden.because("The token belongs to another tenant.")
	}
	return id, nil
}

// oneTenant returns the tenant as tenant does, with the root tenant in place of any.
func (in OfTenant) oneTenant(ctx context.Context) (outbox.ID, error) {
	id, err := in.tenant(ctx)
	if id.IsZero() {
		id = outbox.RootTenant
	}
	return id, err
}
