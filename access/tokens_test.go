package access

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func create(t *testing.T, tokens *Tokens, grant Grant) Token {
	t.Helper()
	if grant.Name == "" {
		grant.Name = "shop"
	}
	if grant.Capabilities == nil {
		grant.Capabilities = []Capability{JobsEnqueue}
	}
	grant.CreatedBy = "ada"
	token, _, err := tokens.Create(t.Context(), grant)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenIsItsPrincipal(t *testing.T) {
	t.Parallel()
	tokens := NewTokens(pgtest.New(t), TokensConfig{})
	tenant := outbox.NewID()
	for name, c := range map[string]struct {
		grant Grant
		want  Principal
	}{
		"of the root tenant, by default": {
			Grant{Name: "shop", Capabilities: []Capability{JobsEnqueue, JobsRead}},
			Principal{Name: "shop", Tenant: outbox.RootTenant, Capabilities: map[Capability]bool{JobsEnqueue: true, JobsRead: true}},
		},
		"of a tenant": {
			Grant{Name: "shop", Tenant: tenant, Capabilities: []Capability{JobsRead}, Lifetime: time.Hour},
			Principal{Name: "shop", Tenant: tenant, Capabilities: map[Capability]bool{JobsRead: true}},
		},
		"of all tenants": {
			Grant{Name: "ops", Tenant: tenant, AllTenants: true, Capabilities: []Capability{AdminMutate}},
			Principal{Name: "ops", Tenant: tenant, AllTenants: true, Capabilities: map[Capability]bool{AdminMutate: true}},
		},
	} {
		got := wantAccepted(t, tokens, name, create(t, tokens, c.grant).Reveal())
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Can(PayloadRead) {
			t.Errorf("%s: it can read payloads, which was not granted", name)
		}
	}
}

func TestAnUnknownCapabilityGrantsNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	token := create(t, tokens, Grant{})
	exec(t, db, `UPDATE outbox.tokens SET capabilities = '{jobs.enqueue,everything}'`)
	got := wantAccepted(t, tokens, "with a capability of a newer build", token.Reveal())
	if diff := cmp.Diff(map[Capability]bool{JobsEnqueue: true}, got.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
}

func TestATokenThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	good := create(t, tokens, Grant{}).Reveal()
	other := create(t, tokens, Grant{})
	flip := func(i int) string {
		letter := byte('a')
		if good[i] == letter {
			letter = 'b'
		}
		return good[:i] + string(letter) + good[i+1:]
	}
	battery := map[string]string{
		"empty": "", "the prefix": "ph_", "no secret": good[:19], "no secret, underscore": good[:20],
		"cut off": good[:len(good)-1], "too long": good + "a", "twice": good + good, "two with a comma": good + ", " + good,
		"upper case": strings.ToUpper(good), "leading space": " " + good, "trailing space": good + " ", "newline": good + "\n",
		"NUL": good + "\x00", "another prefix": "PH" + good[2:], "Bearer twice": "Bearer " + good,
		"another's id": "ph_" + other.id + good[19:], "an id that does not exist": newToken().Reveal(), "hash instead": "ph_" + good[3:19] + "_" + strings.Repeat("a", 64),
		"SQL": "ph_' OR true --_" + good[20:], "one MiB": strings.Repeat("a", 1<<20), "not UTF-8": good[:30] + "\xff" + good[31:],
	}
	for i := range good {
		battery["changed at "+good[:i]] = flip(i)
	}
	combined := Combine(tokens, nil)
	for what, bearer := range battery {
		wantRefused(t, tokens, what, bearer)
		wantRefused(t, combined, what, bearer)
	}
	wantAccepted(t, tokens, "the good one", good)

	exec(t, db, `UPDATE outbox.tokens SET expires_at = statement_timestamp() - interval '1 microsecond' WHERE id = $1`, other.id)
	tokens.cache.forget(other.id) // "another's id" looked at it
	wantRefused(t, tokens, "expired", other.Reveal())
}

// A token that expires while its row is remembered is refused all the same, by
// what the database's clock said was left.
func TestATokenExpiresWhileItIsRemembered(t *testing.T) {
	t.Parallel()
	tokens := NewTokens(pgtest.New(t), TokensConfig{})
	token := create(t, tokens, Grant{Lifetime: time.Hour})
	wantAccepted(t, tokens, "before its end", token.Reveal())
	l, ok := tokens.cache.recall(token.id, time.Now())
	if left := time.Until(l.value.expires); !ok || left > time.Hour || left < 50*time.Minute {
		t.Fatalf("it is remembered for %s, want nearly an hour", left)
	}
	l.value.expires = time.Now()
	wantRefused(t, tokens, "after its end", token.Reveal())
}

func TestARevokedTokenIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, elsewhere := NewTokens(db, TokensConfig{}), NewTokens(db, TokensConfig{})
	token := create(t, here, Grant{})
	for _, tokens := range []*Tokens{here, elsewhere} {
		wantAccepted(t, tokens, "before", token.Reveal())
	}
	first, err := elsewhere.Revoke(t.Context(), token.id, "grace")
	if err != nil || first.RevokedAt.IsZero() {
		t.Fatalf("revoke = %+v, %v", first, err)
	}
	wantRefused(t, elsewhere, "where it was revoked", token.Reveal())
	// Here the row is remembered, but not for longer than five seconds from the
	// look at it, which was before it was revoked.
	if _, ok := here.cache.recall(token.id, time.Now().Add(cacheFor)); ok {
		t.Error("it is still remembered when the five seconds are over")
	}
	here.cache.forget(token.id) // the seconds have passed
	wantRefused(t, here, "where it was remembered", token.Reveal())

	again, err := here.Revoke(t.Context(), token.id, "grace")
	if err != nil || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("revoked again at %s, %v; want the first time %s", again.RevokedAt, err, first.RevokedAt)
	}
	for _, id := range []string{newToken().id, "", "x", token.Reveal()} {
		if _, err := here.Revoke(t.Context(), id, "grace"); !errors.Is(err, ErrNoToken) {
			t.Errorf("revoke %.10q… = %v, want ErrNoToken", id, err)
		} else if strings.Contains(err.Error(), token.secret) {
			t.Error("the error shows a secret")
		}
	}
}

func TestNothingSecretIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	token := create(t, NewTokens(db, TokensConfig{}), Grant{})
	raw, _ := letters.DecodeString(token.secret)
	if found := ask[bool](t, db, `SELECT position($1::bytea IN convert_to(t::text, 'UTF8')) > 0 OR position($2::bytea IN secret_hash) > 0
		OR t::text LIKE '%' || encode($2, 'hex') || '%' FROM outbox.tokens AS t`, []byte(token.secret), raw); found {
		t.Error("the secret is in the row")
	}
}

func TestTheLastUseIsNotedOnceAMinute(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	token := create(t, tokens, Grant{})
	used := func() *time.Time { return ask[*time.Time](t, db, `SELECT last_used_at FROM outbox.tokens`) }
	wantRefused(t, tokens, "with a wrong secret", "ph_"+token.id+"_"+strings.Repeat("a", 52))
	if at := used(); at != nil {
		t.Errorf("a wrong secret counts as a use at %s", at)
	}
	tokens.cache.forget(token.id)
	wantAccepted(t, tokens, "the first time", token.Reveal())
	first := used()
	if first == nil {
		t.Fatal("its use was not noted")
	}
	for _, c := range []struct {
		ago     string
		touched bool
	}{{"30 seconds", false}, {"61 seconds", true}} {
		exec(t, db, `UPDATE outbox.tokens SET last_used_at = now() - $1::text::interval`, c.ago)
		before := used()
		tokens.cache.forget(token.id)
		for range 3 {
			wantAccepted(t, tokens, "again", token.Reveal())
		}
		if after := used(); after.After(*before) != c.touched {
			t.Errorf("last used %s before: noted = %t, want %t", c.ago, after.After(*before), c.touched)
		}
	}
}

// The database is away: what is remembered goes on, the rest is not judged, which
// is not the same as refused.
func TestWithoutTheDatabaseNobodyIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	remembered, forgotten := create(t, tokens, Grant{}), create(t, tokens, Grant{})
	wantAccepted(t, tokens, "with the database", remembered.Reveal())
	exec(t, db, `ALTER TABLE outbox.tokens RENAME TO tokens_away`)
	wantAccepted(t, tokens, "without it, remembered", remembered.Reveal())
	if _, err := tokens.Authenticate(t.Context(), forgotten.Reveal()); err == nil || errors.Is(err, ErrUnauthenticated) || strings.Contains(err.Error(), forgotten.secret) {
		t.Errorf("without it, not remembered: %v, want an error that is not ErrUnauthenticated and shows no secret", err)
	}
}

func TestAnActCountsExactlyWhenItIsRecorded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var acts []TokenAct
	var failure error
	tokens := NewTokens(db, TokensConfig{Record: func(ctx context.Context, tx pgx.Tx, act TokenAct) error {
		acts = append(acts, act)
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS public.recorded ()`)
		return errors.Join(err, failure)
	}})
	token := create(t, tokens, Grant{Name: "shop"})
	if !ask[bool](t, db, `SELECT to_regclass('public.recorded') IS NOT NULL`) {
		t.Error("what Record did was not committed")
	}
	failure = errors.New("no audit")
	if _, _, err := tokens.Create(t.Context(), Grant{Name: "other", CreatedBy: "ada", Capabilities: []Capability{JobsRead}}); !errors.Is(err, failure) {
		t.Errorf("create = %v, want %v", err, failure)
	}
	if _, err := tokens.Revoke(t.Context(), token.id, "grace"); !errors.Is(err, failure) {
		t.Errorf("revoke = %v, want %v", err, failure)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.tokens WHERE revoked_at IS NULL`); n != 1 {
		t.Errorf("%d tokens are good, want the one whose creation was recorded, not revoked", n)
	}
	want := []TokenAct{
		{Verb: "token.create", Actor: "ada", Token: TokenInfo{Name: "shop", Tenant: outbox.RootTenant, Capabilities: []string{"jobs.enqueue"}, CreatedBy: "ada"}},
		{Verb: "token.create", Actor: "ada", Token: TokenInfo{Name: "other", Tenant: outbox.RootTenant, Capabilities: []string{"jobs.read"}, CreatedBy: "ada"}},
		{Verb: "token.revoke", Actor: "grace", Token: TokenInfo{Name: "shop", Tenant: outbox.RootTenant, Capabilities: []string{"jobs.enqueue"}, CreatedBy: "ada"}},
	}
	if diff := cmp.Diff(want, acts, cmpopts.IgnoreFields(TokenInfo{}, "ID"), cmpopts.IgnoreTypes(time.Time{})); diff != "" {
		t.Errorf("acts (-want +got):\n%s", diff)
	}
}

// Without a Record of one's own the audit has the acts, and never a secret.
func TestActsOnTokensAreInTheAudit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	token := create(t, tokens, Grant{Name: "shop"})
	for range 2 {
		if _, err := tokens.Revoke(t.Context(), token.id, "grace"); err != nil {
			t.Fatal(err)
		}
	}
	got := ask[string](t, db, `SELECT string_agg(concat_ws(' ', actor, act, tenant_id, target = $1, after ->> 'name', after ->> 'capabilities',
		CASE WHEN before ? 'revoked_at' THEN 'revoked: ' || ((before ->> 'revoked_at') IS NOT NULL) ELSE 'there was none:' END, (after ->> 'revoked_at') IS NOT NULL), ';' ORDER BY id) FROM outbox.audit`, token.id)
	tenant := outbox.RootTenant.String()
	if want := "ada token.create " + tenant + ` t shop ["jobs.enqueue"] there was none: f;grace token.revoke ` + tenant + " t shop revoked: false t;grace token.revoke " + tenant + " t shop revoked: true t"; got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
	if all := ask[string](t, db, `SELECT string_agg(audit::text, '') FROM outbox.audit`); strings.Contains(all, token.Reveal()[20:]) {
		t.Error("the audit has the secret")
	}
}

func TestEveryMistakeInAGrantIsSaid(t *testing.T) {
	t.Parallel()
	tokens := NewTokens(pgtest.New(t), TokensConfig{})
	_, _, err := tokens.Create(t.Context(), Grant{Name: "a\nb", Capabilities: []Capability{"all"}, Lifetime: -1})
	for _, want := range []string{"Name", "CreatedBy", `"all" is unknown`, "Lifetime"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if _, _, err := tokens.Create(t.Context(), Grant{Name: "a", CreatedBy: "b"}); err == nil {
		t.Error("a token that is good for nothing was made")
	}
}

func TestTokensAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	tokens := NewTokens(pgtest.New(t), TokensConfig{})
	first, second := create(t, tokens, Grant{}), create(t, tokens, Grant{Lifetime: time.Hour})
	list, err := tokens.List(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != second.id || list[1].ID != first.id {
		t.Fatalf("got %+v, %v; want both, newest first", list, err)
	}
	if !list[1].ExpiresAt.IsZero() || list[0].ExpiresAt.Sub(list[0].CreatedAt) != time.Hour {
		t.Errorf("they expire at %s and %s, want never and in an hour", list[1].ExpiresAt, list[0].ExpiresAt)
	}
}

// A hundred requests that come together look once.
func TestCallersShareALook(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tokens := NewTokens(db, TokensConfig{})
	token := create(t, tokens, Grant{})
	var mu sync.Mutex
	looks, find := 0, tokens.cache.find
	entered, leave := make(chan struct{}), make(chan struct{})
	tokens.cache.find = func(ctx context.Context, id string) (*known, error) {
		mu.Lock()
		if looks++; looks == 1 {
			close(entered)
		}
		mu.Unlock()
		<-leave
		return find(ctx, id)
	}
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() { wantAccepted(t, tokens, "together", token.Reveal()) })
	}
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tokens.Authenticate(ctx, token.Reveal()); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went away got %v, want that it waited no longer", err)
	}
	close(leave)
	callers.Wait()
	if looks != 1 {
		t.Errorf("%d looks, want 1", looks)
	}
}
