package engine

// Statuses returns every status of a job, in the order of the database's enum: open ones first. S is outbox.Status.
func Statuses[S ~string]() []S {
	return []S{
		"created", "pending", "blocked", "running", "retrying", "failed", "dead",
		"succeeded", "cancelled", "expired", "skipped", "stale", "dismissed",
	}
}
