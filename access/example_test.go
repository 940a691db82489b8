package access_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	pool *pgxpool.Pool // connects as a member of outbox_api
	acme outbox.ID
)

// How does an HTTP handler identify its caller, and restrict itself to the caller's tenant?
func Example() {
	tokens := access.NewTokens(pool, access.TokensConfig{})
	http.HandleFunc("GET /jobs", func(w http.ResponseWriter, r *http.Request) {
		bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		caller, err := tokens.Authenticate(r.Context(), bearer)
		switch {
		case errors.Is(err, access.ErrUnauthenticated):
			w.WriteHeader(http.StatusUnauthorized)
			return
		case err != nil: // the database is away
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case !caller.Can(access.JobsRead):
			w.WriteHeader(http.StatusForbidden)
			return
		}
		err = access.InTx(r.Context(), pool, caller, func(tx pgx.Tx) error {
			var waiting int // the caller's: the database shows no others
			err := tx.QueryRow(r.Context(), `SELECT count(*) FROM outbox.open_jobs`).Scan(&waiting)
			fmt.Fprintln(w, waiting)
			return err
		})
		if err != nil {
			log.Print(err)
		}
	})
}

// How do I give a service a token?
func ExampleTokens_Create() {
	tokens := access.NewTokens(pool, access.TokensConfig{})
	token, _, err := tokens.Create(context.Background(), access.Grant{
		Name: "shop", Tenant: acme, Capabilities: []access.Capability{access.JobsEnqueue, access.JobsRead},
		Lifetime: 90 * 24 * time.Hour, CreatedBy: "ada",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Reveal()) // now or never: only a hash is stored
}

// How do people who log in at our provider get access?
func ExampleNewOIDC() {
	people, err := access.NewOIDC(context.Background(), access.OIDCConfig{
		Issuer: "https://login.example.org/", Audience: "posthaste",
		TenantClaim: "org", Tenants: map[string]outbox.ID{"acme": acme},
		CapabilityClaim: "roles", AllTenants: "operator",
		Capabilities: map[string][]access.Capability{
			"operator":  {access.AdminRead, access.AdminMutate, access.JobsRead},
			"developer": {access.JobsRead},
		},
	})
	if err != nil {
		log.Fatal(err) // names a mistake in the configuration or of the provider
	}
	everybody := access.Combine(access.NewTokens(pool, access.TokensConfig{}), people)
	_ = everybody
}
