// Package engine is what our packages share about jobs that a user of Posthaste has no use for: how
// the types of package outbox carry what a dispatcher or package await adds to them, without a name
// that anybody else can call.
package engine
