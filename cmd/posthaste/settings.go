package main

import (
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/outbox"
)

// settings are the values of all switches that a command takes.
type settings struct {
	app      app.Config
	notify   outbox.NotifyMode
	webhooks []webhookRoute
	roles    []string
	apiAddr  string

	apiByDefault bool // nobody asked for apiAddr
	logLevel     slog.Level
	logFormat    string
}

// setting is one switch: a flag, the environment variables that stand for it, and
// what holds when neither is given.
type setting struct {
	flag     string
	envs     []string // the first that is set counts
	fallback string
	usage    string
	show     func(string) string           // without what must not be shown; nil shows all
	parse    func(*settings, string) error // the error says what is wanted
}

func (s setting) shown(value string) string {
	if s.show == nil || value == "" {
		return value
	}
	return s.show(value)
}

// allSettings is every switch there is, in the order in which they are explained.
var allSettings = []setting{
	{
		"database-url",
		[]string{"OUTBOX_DATABASE_URL", "DATABASE_URL"},
		"", "`URL` or keyword/value string of Postgres", showDSN,
		func(s *settings, v string) (err error) { s.app.DatabaseURL, err = parseDSN(v); return err },
	},
	{
		"listen-url",
		[]string{"OUTBOX_LISTEN_URL"},
		"", "`URL` for the listener, if the database URL leads to a pooler", showDSN,
		func(s *settings, v string) (err error) { s.app.ListenURL, err = parseDSN(v); return err },
	},
	{
		"role",
		[]string{"OUTBOX_ROLE"},
		"dispatch,reap", "what this process does: `dispatch,reap,api`", nil,
		func(s *settings, v string) (err error) { s.roles, err = parseRoles(v); return err },
	},
	{
		"dispatch",
		[]string{"OUTBOX_DISPATCH"},
		"on", "claim and carry out jobs: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoDispatch) },
	},
	{
		"listen",
		[]string{"OUTBOX_LISTEN"},
		"on", "be woken by notifications: `on|off`; off finds jobs by polling every 2s at most", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoListen) },
	},
	{
		"reap",
		[]string{"OUTBOX_REAP"},
		"on", "expire lapsed leases and trim the history: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoReap) },
	},
	{
		"schedule",
		[]string{"OUTBOX_SCHEDULE"},
		"on", "fire the schedules that are due: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoSchedule) },
	},
	{
		"migrate",
		[]string{"OUTBOX_MIGRATE"},
		"off", "migrate the schema at the start: `on|off`", nil,
		func(s *settings, v string) (err error) { s.app.Migrate, err = parseSwitch(v); return err },
	},
	{
		"webhook",
		[]string{"OUTBOX_WEBHOOKS"},
		"", "carry jobs out by HTTP POST: `KIND=URL`, repeated or separated by commas", showWebhooks,
		func(s *settings, v string) (err error) { s.webhooks, err = parseWebhooks(v); return err },
	},
	{
		"queues",
		[]string{"OUTBOX_QUEUES"},
		outbox.DefaultQueue, "queues to work, each with how many jobs may run at once: `default=64,mail=8`", nil,
		func(s *settings, v string) (err error) { s.app.Queues, err = parseQueues(v); return err },
	},
	{
		"worker",
		[]string{"OUTBOX_WORKER"},
		"", "`NAME` under which leases are held (default: host-pid and 8 hex digits)", nil,
		func(s *settings, v string) (err error) { s.app.Worker, err = parseWorker(v); return err },
	},
	{
		"poll-interval",
		[]string{"OUTBOX_POLL_INTERVAL"},
		"30s", "`DURATION` between looks for jobs while notifications arrive", nil,
		func(s *settings, v string) (err error) {
			s.app.PollInterval, err = parseDuration(v, 10*time.Millisecond, time.Hour)
			return err
		},
	},
	{
		"lease-ttl",
		[]string{"OUTBOX_LEASE_TTL"},
		"15s", "`DURATION` after which a silent worker's jobs are taken over", nil,
		func(s *settings, v string) (err error) {
			s.app.LeaseTTL, err = parseDuration(v, time.Second, 24*time.Hour)
			return err
		},
	},
	{
		"job-timeout",
		[]string{"OUTBOX_JOB_TIMEOUT"},
		"5m", "`DURATION` of one attempt, at most", nil,
		func(s *settings, v string) (err error) {
			s.app.Timeout, err = parseDuration(v, time.Millisecond, 30*24*time.Hour)
			return err
		},
	},
	{"grace-period", []string{"OUTBOX_GRACE_PERIOD"}, "20s", "`DURATION` that running jobs get at a stop; 0s cuts them at once", nil, parseGracePeriod},
	{
		"keep",
		[]string{"OUTBOX_KEEP"},
		"30d,succeeded=14d,failed=90d,dead=90d", "`DURATION` that closed jobs are kept; outcomes and queues may differ: 7d,cancelled=2d,mail:succeeded=1h", nil,
		func(s *settings, v string) (err error) {
			s.app.Keep, s.app.KeepByStatus, s.app.KeepByQueue, err = parseKeep(v)
			return err
		},
	},
	{
		"notify",
		[]string{"OUTBOX_NOTIFY"},
		string(outbox.NotifyCoalesced), "how \"posthaste enqueue\" wakes dispatchers: `off|transactional|coalesced`", nil,
		func(s *settings, v string) (err error) { s.notify, err = parseNotify(v); return err },
	},
	{
		"api-addr",
		[]string{"OUTBOX_API_ADDR"},
		"127.0.0.1:8080", "`HOST:PORT` of the API, for the role api", nil,
		func(s *settings, v string) (err error) { s.apiAddr, err = parseAddr(v); return err },
	},
	{
		"api-schemas",
		[]string{"OUTBOX_API_SCHEMAS"},
		"", "`FOLDER` of files KIND.schema.json by which the API checks payloads", nil,
		func(s *settings, v string) (err error) { s.app.API.Kinds, err = readSchemas(v); return err },
	},
	{
		"admin-addr",
		[]string{"OUTBOX_ADMIN_ADDR"},
		"127.0.0.1:9090", "`HOST:PORT` of /livez, /readyz, /metrics and /debug/pprof/, or off; it has no login", nil,
		func(s *settings, v string) (err error) { s.app.AdminAddr, err = parseAddr(v); return err },
	},
	{
		"log-level",
		[]string{"OUTBOX_LOG_LEVEL"},
		"info", "`debug|info|warn|error`", nil,
		func(s *settings, v string) (err error) { s.logLevel, err = parseLogLevel(v); return err },
	},
	{
		"log-format",
		[]string{"OUTBOX_LOG_FORMAT"},
		"auto", "`auto|json|text`; auto is text on a terminal", nil,
		func(s *settings, v string) (err error) {
			s.logFormat, err = parseOneOf(v, "auto", "json", "text")
			return err
		},
	},
}

// withRoles switches off what the process is not to do.
func (s settings) withRoles() settings {
	has := func(role string) bool { return slices.Contains(s.roles, role) }
	s.app.NoDispatch = s.app.NoDispatch || !has("dispatch")
	s.app.NoReap = s.app.NoReap || !has("reap")
	s.app.NoListen = s.app.NoListen || !has("dispatch") // nobody to wake
	if has("api") {
		s.app.APIAddr = s.apiAddr
	}
	return s
}

func parseGracePeriod(s *settings, v string) (err error) {
	s.app.GracePeriod, err = parseDuration(v, 0, 24*time.Hour)
	if s.app.GracePeriod == 0 {
		s.app.GracePeriod = -1 // zero is the default there
	}
	return err
}

func parseOff(v string, off *bool) error {
	on, err := parseSwitch(v)
	*off = !on
	return err
}

// quoted is how a mistaken value is shown.
func quoted(v string) string { return strconv.Quote(v) }
