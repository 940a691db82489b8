package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrViewNotFound reports that there is no view of that name.
var ErrViewNotFound = errors.New("view not found")

// ErrViewChanged reports that a view stands for another query than the one that is to be replaced or deleted.
var ErrViewChanged = errors.New("the view stands for another query")

// ErrTooManyViews reports that a person, or a tenant, has the maximum number of views.
var ErrTooManyViews = errors.New("too many views")

// MaxViews is how many views a person may have, and how many may be shared in a tenant.
const MaxViews = 50

const (
	maxViewName  = 100
	maxViewQuery = 4096
)

// View is a filter with a name given by a person.
type View struct {
	Name    string // up to 100 bytes; unique for a person, and among the shared ones
	Query   string // the filter, in its author's notation; up to 4 KiB
	Shared  bool   // visible to all of the tenant rather than only to its person
	SavedBy string
	SavedAt time.Time
}

func (w View) validate() error {
	errs := []error{validTexts(map[string]string{"View.Name": w.Name, "View.Query": w.Query})}
	for field, is := range map[string][2]int{
		"View.Name":  {len(w.Name), maxViewName},
		"View.Query": {len(w.Query), maxViewQuery},
	} {
		if is[0] < 1 || is[0] > is[1] {
			errs = append(errs, invalid.Field(field, "has %d bytes, want 1 to %d", is[0], is[1]))
		}
	}
	return errors.Join(errs...)
}

// Views returns the actor's own views, and then those that are shared in the tenant, each by name. The zero tenant is
// for people who see all tenants. See [Operator.As].
func (o *Operator) Views(ctx context.Context, tenant outbox.ID) ([]View, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListViews(ctx, pgvalue.UUID(tenant), o.by.actor)
	if err != nil {
		return nil, fmt.Errorf("list views: %w", err)
	}
	views := make([]View, len(rows))
	for i, row := range rows {
		views[i] = View{
			Name: row.Name, Query: row.Query, Shared: row.Shared, SavedBy: row.SavedBy,
			SavedAt: row.SavedAt.Time,
		}
	}
	return views, nil
}

// SaveView stores a view of the actor, or one that is shared in the tenant, in place of the actor's own view of that
// name. It replaces a shared view of another person only if that one's query is replaces, so that the actor knows what
// is lost, or is the view's own, so that nothing is. Only sharing one is an act for the audit. It returns
// [ErrTooManyViews] and [ErrViewChanged].
func (o *Operator) SaveView(ctx context.Context, tenant outbox.ID, view View, replaces string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := errors.Join(view.validate(), validTexts(map[string]string{"replaces": replaces})); err != nil {
		return err
	}
	saved, err := o.db.SaveView(ctx, sqlgen.SaveViewParams{
		TenantID: pgvalue.UUID(tenant), Person: o.person(view.Shared), Name: view.Name, Query: view.Query,
		Replaces: replaces, Most: MaxViews,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil || saved.IsSaved:
	case saved.IsFull:
		err = ErrTooManyViews
	default:
		err = ErrViewChanged
	}
	if err != nil {
		return fmt.Errorf("save view %q: %w", view.Name, err)
	}
	return nil
}

// DeleteView deletes a view of the actor, or one that is shared in the tenant, if it still stands for the view's query.
// It returns [ErrViewNotFound] and [ErrViewChanged].
func (o *Operator) DeleteView(ctx context.Context, tenant outbox.ID, view View) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := validTexts(map[string]string{"View.Name": view.Name, "View.Query": view.Query}); err != nil {
		return err
	}
	found, err := o.db.DeleteView(ctx, sqlgen.DeleteViewParams{
		TenantID: pgvalue.UUID(tenant), Person: o.person(view.Shared), Name: view.Name, Query: view.Query,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil || found.IsDeleted:
	case found.WasThere:
		err = ErrViewChanged
	default:
		err = ErrViewNotFound
	}
	if err != nil {
		return fmt.Errorf("delete view %q: %w", view.Name, err)
	}
	return nil
}

// person returns the owner of a view: the actor, or nobody in particular.
func (o *Operator) person(shared bool) string {
	if shared {
		return ""
	}
	return o.by.actor
}
