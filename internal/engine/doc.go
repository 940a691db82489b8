// Package engine holds what our packages share about jobs and users of Posthaste do not need: the types of package
// outbox carry what a dispatcher or package await adds to them, under no name that other code can use.
package engine
