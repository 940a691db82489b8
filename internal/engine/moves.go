package engine

import "slices"

// legalMoves is the state machine of a job's status.
var legalMoves = map[string][]string{
	"created":  {"pending", "cancelled", "expired"},
	"pending":  {"running", "blocked", "cancelled", "expired", "skipped"},
	"blocked":  {"pending", "cancelled", "expired", "skipped"},
	"running":  {"succeeded", "retrying", "pending", "failed", "dead", "cancelled", "expired", "stale"},
	"retrying": {"running", "blocked", "cancelled", "expired", "skipped", "dead"},
	"failed":   {"pending", "dismissed"},
	"dead":     {"pending", "dismissed"},
}

// CanBecome reports whether a job may move from one status, an outbox.Status, to another.
func CanBecome[S ~string](from, to S) bool {
	return slices.Contains(legalMoves[string(from)], string(to))
}
