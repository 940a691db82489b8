package docs_test

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// sqlFunction is what reference/sql.md adds to a function's declaration.
type sqlFunction struct {
	does       string            // in sentences
	returns    string            // the meaning of its value
	parameters map[string]string // those whose meaning differs from sqlParameters
}

var sqlFunctions = map[string]sqlFunction{
	"cancel": {
		does: "Cancels a job. It waits for a transaction that has locked the job, such as a claim or a settlement.",
		returns: "The job's status afterwards. `cancelled`: the job was waiting, or had been cancelled before, and will not run. `running`: its handler has been asked to stop, now or before; " +
			"unless it succeeds nevertheless, the job ends `cancelled`. Any other status: nothing was changed, because the job is closed or a dead letter. NULL: no such job.",
	},
	"change_schedule": {
		does: "Changes a schedule that the API, a command or SQL created. A parameter that is NULL leaves its value as it is; `''`, `0` and `'{}'` restore the default. A new timing (`cron`, `every`, `time_zone`) " +
			"counts from now, every other change from the next tick. It raises 55000 if a program declares the schedule in its code, and 55006 if a new timing would lose a tick that is due and has " +
			"not fired: try again, or pause the schedule first.",
		returns: "true if the schedule exists, false if not.",
		parameters: map[string]string{
			"kind":         "the kind of its jobs",
			"cron":         "a cron expression; replaces `every`",
			"every":        "an interval; replaces `cron`",
			"time_zone":    "the IANA time zone of the cron expression; refused if the schedule has an interval",
			"payload":      "the payload of its jobs",
			"queue":        "its jobs' queue; `''` is `default`",
			"backoff":      "the waits after the first failed attempt, the second and so on, the last one repeated; at most 64. `'{}'` is the kind's backoff",
			"headers":      "a JSON object of strings, passed to the handler; at most 63 KiB, without `schedule` and `scheduled_for`",
			"max_attempts": "1 to 32767; 0 is 25",
			"timeout":      "of one attempt; 0 is that of the kind's handler, or 5 minutes",
			"key":          "the [key](../guides/keys.md) of its jobs; `''` removes it",
			"deadline":     "a job expires this long after its tick; 0 is never",
			"on_death":     "what the jobs behind an ordered job do once it is `failed` or `dead`: `skip`, `park`, or `''` to wait",
			"on_lapse":     "what becomes of a job whose lease lapses: `fail-stale`, `block`, or `''` to run again",
			"max_active":   "jobs of the key that may run at once; 1 to 1000; 0 is 1",
			"park_after":   "with `park`: the key is set aside only if nobody has dealt with the dead letter after this time; 0 is at once",
		},
	},
	"create_schedule": {
		does: "Creates a schedule in the current transaction. Exactly one of `cron` and `every` is required. The schedule stays until it is deleted, or until a program declares one of the same name, which " +
			"replaces it. It raises 23505 if the tenant has a schedule of that name.",
		returns:    "nothing.",
		parameters: map[string]string{"headers": "a JSON object of strings, passed to the handler; at most 63 KiB, without `schedule` and `scheduled_for`"},
	},
	"current_tenant": {
		does:    "The tenant that the setting `app.tenant_id` restricts this transaction to.",
		returns: "The tenant's id; NULL if the setting is absent, empty or `*`.",
	},
	"delete_schedule": {
		does:    "Deletes a schedule. Jobs that it has enqueued stay. A program that declares the schedule creates it again when it next starts. The call waits for a tick that is being fired.",
		returns: "true if the schedule existed, false if not.",
	},
	"enqueue": {
		does: "Stores a job in the current transaction.",
		returns: "The job's id. With an `idempotency_key` that was used before, the first job's id, and nothing is stored. With `max_queued` reached: NULL if the job was rejected, which is the default, and " +
			"the id of the waiting job that stands for it if `when_full` is `coalesce`.",
		parameters: map[string]string{"deadline": "the instant from which the job may no longer start, run or succeed; it then expires. NULL is never", "hold": "true stores the job as `created`; it does not run before `outbox.release`"},
	},
	"ensure_days": {
		does: "Creates the daily partitions of `outbox.history` and `outbox.events` that are missing, from yesterday (UTC) on. Reapers call it; a program has to only while no reaper runs. Neither settlements nor " +
			"producers wait for it.",
		returns: "The number of partitions created.",
	},
	"publish": {
		does: "Stores an event in the current transaction. Relays publish it after the commit. Events of a key are published in the order of the transactions that held a lock on what the key stands for, such as " +
			"a row that they change.",
		returns: "The event's id.",
		parameters: map[string]string{
			"key":     "events of a tenant and key are published in order; at most 512 bytes. NULL and `''` are no key",
			"payload": "at most 4 MiB; `'null'::jsonb` is JSON's null, SQL's NULL is refused",
			"headers": "a JSON object of strings, published with the event; at most 64 KiB",
			"notify":  "false sends no notification: relays find the event when they next poll",
		},
	},
	"release": {
		does:    "Lets a held job run.",
		returns: "The status in which it found the job. `created`: the job was held and is released. Any other status: nothing was changed. NULL: the job is not open.",
	},
	"secure": {
		does: "Creates the roles `outbox_owner`, `outbox_producer`, `outbox_worker`, `outbox_api` and `outbox_reader`, their rights and the policies of row-level security. `migrate up` calls it. Call it as the owner " +
			"after adding a table to the schema, after changing the owner, or when an administrator has created roles that the migration was not allowed to create. It gives up after waiting 10 ms for a " +
			"lock on a table; call it again then.",
		returns: "true if everything is as it should be; false if a role is missing, in which case row-level security stays as it was.",
	},
	"unblock_key": {
		does:       "Unblocks a parked key: retries the dead letters that hold it up, at their old places and with all their attempts; the other jobs of the key follow.",
		returns:    "The number of dead letters retried. NULL: no open job has the key, and nothing is recorded about it.",
		parameters: map[string]string{"of_tenant": "the tenant of the key", "of_queue": "its queue", "of_key": "its name"},
	},
	"uuid_v7": {
		does:    "Generates an id in the order of time: 48 bits of milliseconds, then random bits.",
		returns: "A UUID of version 7.",
	},
}

// sqlParameters are the meanings of parameters that several functions share.
var sqlParameters = map[string]string{
	"job_id":          "the job",
	"actor":           "who acts, for the [audit](../guides/audit.md); NULL is the login and its address",
	"request_id":      "the request that caused the act, for the audit",
	"reason":          "why, for the audit",
	"name":            "the schedule's name, unique in its tenant; 1 to 128 letters, digits and `_ . : / -`, the first a letter or digit",
	"kind":            "decides which handler runs the job; named like a queue. Names that begin with `relay:` are refused",
	"cron":            "a cron expression, such as `0 9 * * MON-FRI` or `@daily`",
	"time_zone":       "the IANA time zone of `cron`",
	"every":           "1 s to 10 years, of whole milliseconds, without months; ticks at its multiples since the beginning of 1970 (UTC)",
	"payload":         "the arguments of the handler, at most 4 MiB; `'null'::jsonb` is JSON's null, SQL's NULL is refused",
	"queue":           "1 to 128 letters, digits and `_ . : / -`, the first a letter or digit. Names that begin with `relay:` are refused",
	"priority":        "higher is claimed first; -32768 to 32767",
	"run_at":          "the job is due at this instant; excludes `delay`. NULL is at once",
	"delay":           "the job is due this long after the statement began; excludes `run_at`",
	"max_attempts":    "1 to 32767; the failure of the last attempt makes the job dead",
	"timeout":         "of one attempt; NULL is that of the kind's handler, or 5 minutes",
	"key":             "jobs of a tenant, queue and [key](../guides/keys.md) run one at a time; at most 512 bytes. NULL and `''` are no key",
	"idempotency_key": "unique for a tenant and kind while the job is kept; at most 512 bytes; excludes `max_queued`. NULL and `''` are none",
	"headers":         "a JSON object of strings, passed to the handler; at most 64 KiB",
	"tenant_id":       "the tenant; the default is the root tenant",
	"notify":          "false sends no notification: dispatchers find the job when they next poll",
	"deadline":        "a job expires this long after its tick; NULL is never",
	"hold":            "true stores its jobs as `created`; they do not run before `outbox.release`",
	"max_active":      "jobs of the key that may run at once, in all processes; 1 to 1000, NULL is 1; at most 1 if `ordered`",
	"ordered":         "true: the job starts only as the first unfinished ordered job of its key",
	"sequence":        "position of an ordered job, from 1; NULL is the order of commits",
	"on_death":        "what the jobs behind an ordered job do once it is `failed` or `dead`. `skip`: they run. `park`: the whole key is set aside until it is unblocked. NULL: they wait until the dead letter is retried or dismissed",
	"park_after":      "with `park`: the key is set aside only if nobody has dealt with the dead letter after this time",
	"on_lapse":        "what becomes of a job with a key whose lease lapses. `fail-stale`: it is closed as `stale`. `block`: it is dead and its key is parked. NULL: it runs again",
	"max_queued":      "jobs of the key that may wait at once, this one included; 1 to 100000; needs READ COMMITTED. NULL is any number",
	"when_full":       "what happens at `max_queued`. `coalesce`: the newest waiting job of the key and kind stands for this one. `replace-oldest`: the job of the kind that has waited longest is closed as `skipped`. NULL: this job is rejected, as with the others if no job of the kind is waiting",
	"watched":         "true: the job's end is announced by a notification, for [package await](../guides/results.md)",
	"backoff":         "the waits after the first failed attempt, the second and so on, the last one repeated; at most 64. NULL is the kind's backoff",
	"streamed":        "true: each change of the job is stored as an [event](../guides/lifecycle.md)",
	"missed":          "ticks during which no process ran. `once`: one job, for the latest. `skip`: none, unless the latest is less than a minute ago. `all`: a job for each of the latest `missed_limit`",
	"missed_limit":    "with `all`; 1 to 1000",
	"days_ahead":      "how many days ahead, 0 to 400",
	"topic":           "decides the route; 1 to 128 letters, digits and `_ . : / -`, the first a letter or digit",
	"content_type":    "of the payload; 1 to 128 bytes",
	"id":              "NULL generates one",
	"serial":          "true: the call waits for every other transaction that has published with `serial` for the same tenant and key, and has not ended; needs a `key`",
}

// sqlViews are what a row of a view is.
var sqlViews = map[string]string{
	"closed_jobs":     "A closed job, of `outbox.history`. `payload` is NULL if it is not JSON.",
	"dead_letters":    "A job that is `failed` or `dead`.",
	"debezium_events": "An event with the columns of the table of Debezium's outbox event router. `type` is the header `type` if the event has it, otherwise the topic; `payload` is NULL if it is not JSON or `jsonb` cannot hold it.",
	"open_jobs":       "A job that is not closed, dead letters included. `payload` is NULL if it is not JSON.",
}

// describe returns a function's part of reference/sql.md.
func describe(t *testing.T, name, arguments, result string) string {
	t.Helper()
	f, ok := sqlFunctions[name]
	if !ok {
		t.Errorf("describe outbox.%s in docs/sql_test.go", name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### outbox.%s\n\n%s\n\n%s\n\n", name, strings.Join(wrapped(f.does), "\n"),
		strings.Join(wrapped("Returns `"+result+"`: "+strings.ToLower(f.returns[:1])+f.returns[1:]), "\n"))
	if arguments == "" {
		return b.String()
	}
	b.WriteString("| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n")
	for parameter := range strings.SplitSeq(arguments, ", ") {
		declared, fallback, has := strings.Cut(parameter, " DEFAULT ")
		of, kind, _ := strings.Cut(declared, " ")
		if fallback = "`" + regexp.MustCompile(`::[a-z ]+(\[\])?$`).ReplaceAllString(fallback, "") + "`"; !has {
			fallback = "required"
		}
		meaning := cmp.Or(f.parameters[of], sqlParameters[of])
		if meaning == "" {
			t.Errorf("describe parameter %s of outbox.%s in docs/sql_test.go", of, name)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", of, kind, fallback, meaning)
	}
	b.WriteString("\n")
	return b.String()
}
