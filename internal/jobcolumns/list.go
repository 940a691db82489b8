package main

// column is a column of outbox.jobs, with its name or expression in each kind of statement.
type column struct {
	name string

	// history is its value in outbox.history, where the column has the same name unless kept names another; "" if a
	// closed job does not keep it.
	history string
	kept    string

	// given is the value in a producer's statement that stores one job, and array the array in one that stores many,
	// with the type of its elements. value is what is stored for an element, which is NULL if all jobs leave the column
	// to its default. All three are "" if producers do not set the column.
	given, array, value string

	claimed bool // a claim returns it

	// shown is the name under which users see it, or "" if they do not. open and closed are its expressions in
	// outbox.jobs and in outbox.history, if they are not the column itself. %s is the table.
	open, closed, shown string
}

// columns lists each column of a job once. Add a column that is stored, kept or claimed here, to migrations/, and to
// internal/engine/columns.go, outbox/columns.go or dispatcher/claims.go. Claimed columns come in the order in which a
// claim returns them.
var columns = []column{
	{name: "id", shown: "id", history: "id", given: "@id::uuid", array: "uuid ids", value: "id", claimed: true},
	{
		name: "tenant_id", shown: "tenant_id", history: "tenant_id", given: "@tenant_id::uuid", array: "uuid tenant_ids",
		value: "coalesce(tenant_id, " + root + ")", claimed: true,
	},
	{
		name: "kind", shown: "kind", history: "kind", given: "@kind::text", array: "text kinds", value: "kind",
		claimed: true,
	},
	{
		name: "priority", shown: "priority", history: "priority", given: "@priority::smallint",
		array: "smallint priorities", value: "coalesce(priority, 0)", claimed: true,
	},
	{name: "attempt", shown: "attempt", history: "attempt", claimed: true},
	{
		name: "max_attempts", shown: "max_attempts", history: "max_attempts", given: "@max_attempts::integer",
		array: "integer max_attempts", value: "coalesce(max_attempts, 25)", claimed: true,
	},
	{name: "lost_leases", shown: "lost_leases", history: "lost_leases", claimed: true},
	{name: "epoch", shown: "epoch", history: "epoch", claimed: true},
	{
		name: "key", shown: "key", open: "coalesce(%s.key, '')::text", closed: "coalesce(%s.key, '')::text",
		history: "key", given: "sqlc.narg('key')::text", array: "text keys", value: "nullif(key, '')", claimed: true,
	},
	{
		name: "payload", shown: "payload_bytes", open: "octet_length(%s.payload)", closed: "octet_length(%s.payload)",
		history: "payload", given: "@payload::bytea", array: "bytea payloads", value: "payload", claimed: true,
	},
	{
		name: "content_type", shown: "content_type", history: "content_type", given: "@content_type::text",
		array: "text content_types", value: "coalesce(content_type, 'application/json')", claimed: true,
	},
	{
		name: "headers", history: "headers", given: "sqlc.narg('headers')::text::jsonb", array: "text headers",
		value: "nullif(headers, '')::jsonb", claimed: true,
	},
	{
		name: "timeout", shown: "timeout", history: "timeout", given: "sqlc.narg('timeout')::interval",
		array: "interval timeouts", value: "timeout", claimed: true,
	},
	{
		name: "backoff", shown: "backoff", history: "backoff", given: "sqlc.narg('backoff')::text::interval[]",
		array: "text backoffs", value: "nullif(backoff, '')::interval[]", claimed: true,
	},
	{
		name: "run_at", shown: "run_at", history: "run_at", array: "timestamptz run_ats",
		given:   "coalesce(sqlc.narg('run_at')::timestamptz, statement_timestamp() + sqlc.narg('delay')::interval, statement_timestamp())",
		value:   "coalesce(run_at, statement_timestamp() + delay, statement_timestamp())",
		claimed: true,
	},
	{name: "created_at", shown: "created_at", history: "created_at", claimed: true},
	{name: "started_at", shown: "started_at", history: "started_at", claimed: true},
	{
		name: "deadline", shown: "deadline", history: "deadline", given: "sqlc.narg('deadline')::timestamptz",
		array: "timestamptz deadlines", value: "deadline", claimed: true,
	},
	{
		name: "watched", given: "nullif(@watched::boolean, false)", array: "boolean watched",
		value: "nullif(watched, false)", claimed: true,
	},
	{
		name: "streamed", shown: "streamed", open: "(%s.streamed IS NOT NULL)::boolean",
		closed: "(%s.streamed IS NOT NULL)::boolean", history: "streamed",
		given: "CASE WHEN @streamed::boolean THEN 1 END", array: "boolean streamed",
		value: "CASE WHEN streamed THEN 1 END", claimed: true,
	},

	{
		name: "queue", shown: "queue", history: "queue", given: "@queue::text", array: "text queues",
		value: "coalesce(queue, 'default')",
	},
	{
		name: "status", shown: "status", open: "%s.status::text", closed: "%s.status::text", history: "status",
		kept:  "closed_from",
		given: "CASE WHEN @hold::boolean THEN 'created' ELSE 'pending' END::outbox.job_status",
		array: "boolean holds", value: "CASE WHEN hold THEN 'created' ELSE 'pending' END::outbox.job_status",
	},
	{
		name: "lease_owner", shown: "worker", open: "coalesce(%s.lease_owner, '')::text",
		closed: "coalesce(%s.worker, '')::text", history: "lease_owner", kept: "worker",
	},
	{
		name: "last_error_code", shown: "error_code", open: "coalesce(%s.last_error_code, '')::text",
		closed: "coalesce(%s.last_error_code, '')::text", history: "last_error_code",
	},
	{
		name: "last_error_message", shown: "error_message", open: "coalesce(%s.last_error_message, '')::text",
		closed: "coalesce(%s.last_error_message, '')::text", history: "last_error_message",
	},
	{name: "cancel_requested_at", shown: "cancel_requested_at", history: "cancel_requested_at"},
	{name: "parent_id", shown: "parent_id", history: "parent_id"},
	{name: "lease_expires_at", shown: "lease_expires_at", closed: "NULL::timestamptz"},
	{name: "finished_at", shown: "finished_at", open: "NULL::timestamptz"},
	{
		name: "max_active", given: "sqlc.narg('max_active')::smallint", array: "smallint max_actives",
		value: "nullif(max_active, 0)",
	},
	{
		name: "ordered", given: "sqlc.narg('ordered')::boolean", array: "boolean ordereds",
		value: "nullif(ordered, false)",
	},
	{
		name: "line_position", given: "sqlc.narg('position')::bigint", array: "bigint positions",
		value: "nullif(line_position, 0)",
	},
	{name: "on_death", given: "sqlc.narg('on_death')::text", array: "text on_deaths", value: "nullif(on_death, '')"},
	{
		name: "park_after", given: "sqlc.narg('park_after')::interval", array: "interval park_afters",
		value: "park_after",
	},
	{name: "on_lapse", given: "sqlc.narg('on_lapse')::text", array: "text on_lapses", value: "nullif(on_lapse, '')"},
}

// inputs lists arrays besides those of columns, from which stored values are computed.
var inputs = []column{{name: "delay", array: "interval delays"}}

// inputNames maps columns to the names of their elements in values, where these differ from the column's.
var inputNames = map[string]string{"status": "hold"}

// root is the tenant of programs without tenants: outbox.RootTenant.
const root = "'00000000-0000-0000-0000-000000000001'"
