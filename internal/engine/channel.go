package engine

// Channel is the NOTIFY channel that dispatchers listen to. Notifications carry no data: any role may read and forge
// them.
const Channel = "outbox_jobs"

// EventsChannel is the NOTIFY channel that relays listen to, in the same way.
const EventsChannel = "outbox_events"

// SettledChannel is the NOTIFY channel that callers listen to who wait for jobs, in the same way.
const SettledChannel = "outbox_settled"
