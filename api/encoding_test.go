package api_test

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A database in another encoding than UTF-8 refuses what it lacks: that is said, and
// others' requests of the same moment go through.
func TestWhatTheEncodingLacksIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEncoded(t, "LATIN1")
	login, err := url.Parse(pgtest.LoginURL(t, db.Config().ConnString(), "outbox_api"))
	if err != nil {
		t.Fatal(err)
	}
	query := login.Query()
	query.Set("client_encoding", "UTF8") // as in every pool that we open
	login.RawQuery = query.Encode()
	pool, err := pgxpool.New(t.Context(), login.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := rigOn(t, db, func(c *api.Config) { c.Pool = pool })
	for _, refused := range []response{r.post("/jobs", `{"kind":"mail","key":"☃"}`), r.get("/jobs?key=%E2%98%83")} {
		if p := refused.problem(422, "invalid_input"); p.Detail == "" {
			t.Error("it does not say why")
		}
	}
	for _, taken := range []string{`{"kind":"mail","key":"café"}`, `{"kind":"mail","payload":{"text":"☃"}}`} {
		r.post("/jobs", taken).want(202, nil)
	}
}
