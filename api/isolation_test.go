package api_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// What a role or a database has as its isolation level must not make requests fail.
func TestTheDefaultIsolationDoesNotMatter(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable read"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			if _, err := db.Exec(t.Context(), fmt.Sprintf(
				`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), '%s'); END $$`, level)); err != nil {
				t.Fatal(err)
			}
			db.Reset()
			// One caller may have three quarters of them: no request waits for its turn, in vain on a slow machine.
			r := rigOn(t, db, func(c *api.Config) { c.MaxInFlight = 128 }).as("root")
			var requests sync.WaitGroup
			for i := range 96 {
				requests.Go(func() {
					body := fmt.Sprintf(`{"kind":"ok","idempotencyKey":"key-%d"}`, i%4)
					if got := r.post("/jobs", body); got.Code != http.StatusAccepted && got.Code != http.StatusConflict {
						t.Errorf("POST %s: %d %s", body, got.Code, got.Body)
					}
				})
			}
			requests.Wait()
			if got := r.post("/jobs", `{"kind":"ok","key":"k","maxQueued":3}`); got.Code != http.StatusAccepted {
				t.Errorf("with maxQueued: %d %s", got.Code, got.Body)
			}
		})
	}
}
