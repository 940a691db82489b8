// Package access identifies callers and what they may do: it authenticates bearers (our own tokens, and JWTs of an
// OpenID Connect provider) and binds a transaction to the caller's tenant.
//
//	tokens := access.NewTokens(pool, access.TokensConfig{})
//	caller, err := tokens.Authenticate(ctx, bearer)
//	err = access.InTx(ctx, pool, caller, func(tx pgx.Tx) error { … })
//
//	bearer ──▶ Authenticator ──▶ Principal{Tenant, Capabilities} ──▶ InTx: the database
//	                                                                shows that tenant only
//
// Guarantees:
//
//   - No secret is stored, logged or shown again: the database has only a hash of a token.
//   - Every process refuses a revoked or expired token, and a session that was ended, within 5 seconds, whatever it
//     caches.
//   - Whatever is not granted is refused: an unknown capability, a claim that is not mapped and a tenant that is not
//     named grant nothing.
//   - Guesses learn nothing: every refusal is [ErrUnauthenticated], and an id that does not exist costs what a wrong
//     secret costs.
package access
