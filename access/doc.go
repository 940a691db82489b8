// Package access says who calls and what they may do: it authenticates bearers
// (our own tokens, and JWTs of an OpenID Connect provider) and ties a
// transaction to the caller's tenant.
//
//	bearer ──▶ Authenticator ──▶ Principal{Tenant, Capabilities} ──▶ InTx: the database
//	                                                                shows that tenant only
//
// Guarantees:
//
//   - Nothing that is secret is stored, logged or shown again: of a token the
//     database has a hash.
//   - A token that is revoked or expired is refused within 5 seconds by every
//     process, whatever is cached.
//   - What is not granted is refused: an unknown capability, a claim that is not
//     mapped, a tenant that is not named grant nothing.
//   - Guesses learn nothing: every refusal is [ErrUnauthenticated], and an id that
//     does not exist costs what a wrong secret costs.
package access
