package outboxtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// field is an option that a test sets.
type field struct {
	name, want string
	got        func(storedJob) string
}

func valuesOf(fields []field, value func(field) string) (lines []string) {
	for _, f := range fields {
		lines = append(lines, f.name+": "+value(f))
	}
	return lines
}

// optionFields returns the options that are set.
func optionFields(o outbox.Options) (fields []field) {
	add := func(set bool, name string, want any, got func(storedJob) any) {
		if set {
			fields = append(fields,
				field{name, fmt.Sprint(want), func(s storedJob) string { return fmt.Sprint(got(s)) }})
		}
	}
	second := func(at time.Time) string { return at.UTC().Round(time.Second).Format(time.RFC3339) }
	add(o.Queue != "", "Queue", o.Queue, func(s storedJob) any { return s.queue })
	add(o.Priority != 0, "Priority", o.Priority, func(s storedJob) any { return s.priority })
	add(o.Delay != 0, "Delay", o.Delay.Round(time.Second), func(s storedJob) any {
		return s.runAt.Sub(s.created).Round(time.Second)
	})
	add(!o.RunAt.IsZero(), "RunAt", second(o.RunAt), func(s storedJob) any { return second(s.runAt) })
	add(o.MaxAttempts != 0, "MaxAttempts", o.MaxAttempts, func(s storedJob) any { return s.maxAttempts })
	add(o.Timeout != 0, "Timeout", o.Timeout, func(s storedJob) any { return s.timeout })
	add(len(o.Backoff) > 0, "Backoff", o.Backoff, func(s storedJob) any { return s.backoff })
	add(o.IdempotencyKey != "", "IdempotencyKey", o.IdempotencyKey, func(s storedJob) any { return s.idempotencyKey })
	add(!o.Tenant.IsZero(), "Tenant", o.Tenant, func(s storedJob) any { return s.tenant })
	add(!o.Deadline.IsZero(), "Deadline", second(o.Deadline), func(s storedJob) any {
		if s.deadline == nil {
			return "none"
		}
		return second(*s.deadline)
	})
	add(o.Hold, "Hold", true, func(s storedJob) any { return s.status == outbox.Created })
	add(o.Streamed, "Streamed", true, func(s storedJob) any { return s.streamed })
	headers := map[string]string{
		"caller-service": o.Caller.Service, "caller-user": o.Caller.User,
		"correlation-id": o.Caller.CorrelationID,
	}
	maps.DeleteFunc(headers, func(_, value string) bool { return value == "" })
	maps.Copy(headers, o.Headers)
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		add(true, fmt.Sprintf("Headers[%q]", name), headers[name], func(s storedJob) any { return s.headers[name] })
	}
	key := o.Key
	add(key.Name != "", "Key.Name", key.Name, func(s storedJob) any { return s.key })
	add(key.MaxActive != 0, "Key.MaxActive", key.MaxActive, func(s storedJob) any { return s.rules.MaxActive })
	add(key.Ordered, "Key.Ordered", true, func(s storedJob) any { return s.rules.Ordered })
	add(key.Sequence != 0, "Key.Sequence", key.Sequence, func(s storedJob) any { return s.rules.Sequence })
	add(key.OnDeath != "", "Key.OnDeath", key.OnDeath, func(s storedJob) any { return s.rules.OnDeath })
	add(key.ParkAfter != 0, "Key.ParkAfter", key.ParkAfter, func(s storedJob) any { return s.rules.ParkAfter })
	add(key.OnLapse != "", "Key.OnLapse", key.OnLapse, func(s storedJob) any { return s.rules.OnLapse })
	return fields
}
