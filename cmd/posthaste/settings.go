package main

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/docs/site"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay/webhook"
	"github.com/posthaste-dev/posthaste/server"
	"github.com/posthaste-dev/posthaste/tracing"
)

// settings holds the values of all settings that a command takes.
type settings struct {
	app      app.Config
	server   server.Config
	notify   outbox.NotifyMode
	webhooks []webhookRoute
	signing  webhook.Signing // for webhooks
	roles    []string
	apiAddr  string
	apiURL   string
	apiToken string
	oidc     access.OIDCConfig
	signIn   access.SignInConfig
	console  console.Config

	relayConfig *relayConfig // nil means none
	noRelay     bool
	noListen    bool // for the relay; app.NoListen is also set without jobs to wake for

	apiByDefault bool // apiAddr was not set explicitly
	logLevel     slog.Level
	logFormat    string
	trace        string // a tracing.Mode, or off
}

// setting is one setting: a flag, the environment variables that stand for it, and the default if neither is given.
type setting struct {
	flag     string
	envs     []string // the first that is set counts
	fallback string
	usage    string
	show     func(string) string           // removes what must not be shown; nil shows all
	parse    func(*settings, string) error // the error describes what is wanted
}

func (s setting) shown(value string) string {
	if s.show == nil || value == "" {
		return value
	}
	return s.show(value)
}

// allSettings lists every setting, in the order in which they are explained.
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
		"", "`URL` for the listener, if the database URL is that of a pooler", showDSN,
		func(s *settings, v string) (err error) { s.app.ListenURL, err = parseDSN(v); return err },
	},
	{
		"role",
		[]string{"OUTBOX_ROLE"},
		defaultRoles, "roles of this process: `dispatch,reap,relay,api,console`", nil,
		func(s *settings, v string) (err error) { s.roles, err = parseRoles(v); return err },
	},
	{
		"dispatch",
		[]string{"OUTBOX_DISPATCH"},
		"on", "claim and run jobs: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoDispatch) },
	},
	{
		"listen",
		[]string{"OUTBOX_LISTEN"},
		"on", "listen for notifications: `on|off`; off polls for jobs at least every 2s", nil,
		func(s *settings, v string) error {
			err := parseOff(v, &s.noListen)
			s.app.NoListen = s.noListen
			return err
		},
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
		"on", "fire due schedules: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoSchedule) },
	},
	{
		"relay-config",
		[]string{"OUTBOX_RELAY_CONFIG"},
		"", "`FILE` with the routes of events to brokers and the services on NATS: relay.yaml", nil,
		func(s *settings, v string) (err error) { s.relayConfig, err = parseRelayConfig(v); return err },
	},
	{
		"relay",
		[]string{"OUTBOX_RELAY"},
		"on", "publish events and fetch for bridges, with a relay-config: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.noRelay) },
	},
	{
		"migrate",
		[]string{"OUTBOX_MIGRATE"},
		"off", "migrate the schema at the start: `on|off`", nil,
		func(s *settings, v string) error {
			on, err := parseSwitch(v)
			if on {
				s.app.Migrate = migrate.Up
			}
			return err
		},
	},
	{
		"webhook",
		[]string{"OUTBOX_WEBHOOKS"},
		"", "run jobs by HTTP POST: `KIND=URL`, repeated or separated by commas", showWebhooks,
		func(s *settings, v string) (err error) { s.webhooks, err = parseWebhooks(v); return err },
	},
	{
		"webhook-secret",
		[]string{"OUTBOX_WEBHOOK_SECRET"},
		"", "`SECRET` that signs webhooks: whsec_ and 24 to 64 bytes in base64; after a comma the previous one (default: not signed)", func(string) string { return redacted },
		func(s *settings, v string) (err error) { s.signing, err = parseWebhookSecrets(v); return err },
	},
	{
		"queues",
		[]string{"OUTBOX_QUEUES"},
		engine.DefaultQueue, "queues to work, each with the number of jobs that may run at once: `default=64,mail=8`",
		nil,
		func(s *settings, v string) (err error) { s.app.Queues, err = parseQueues(v); return err },
	},
	{
		"worker",
		[]string{"OUTBOX_WORKER"},
		"", "`NAME` that begins the name under which leases are held, which ends with 8 hex digits (default: host-pid), and that is the metrics' label worker_id (default: host)", nil,
		func(s *settings, v string) (err error) { s.app.Worker, err = parseWorker(v); return err },
	},
	{
		"poll-interval",
		[]string{"OUTBOX_POLL_INTERVAL"},
		"30s", "`DURATION` between polls while notifications arrive", nil,
		func(s *settings, v string) (err error) {
			s.app.PollInterval, err = parseDuration(v, 10*time.Millisecond, time.Hour)
			return err
		},
	},
	{
		"lease-ttl",
		[]string{"OUTBOX_LEASE_TTL"},
		"15s", "`DURATION` after which the jobs of a silent worker run again", nil,
		func(s *settings, v string) (err error) {
			s.app.LeaseTTL, err = parseDuration(v, time.Second, 24*time.Hour)
			return err
		},
	},
	{
		"job-timeout",
		[]string{"OUTBOX_JOB_TIMEOUT"},
		"5m", "`DURATION` of one attempt, unless the job or its kind sets another", nil,
		func(s *settings, v string) (err error) {
			s.app.Timeout, err = parseDuration(v, time.Millisecond, 30*24*time.Hour)
			return err
		},
	},
	{
		"grace-period",
		[]string{"OUTBOX_GRACE_PERIOD"},
		"20s",
		"`DURATION` that running jobs get at shutdown; 0s interrupts them at once", nil, parseGracePeriod,
	},
	{
		"keep",
		[]string{"OUTBOX_KEEP"},
		"30d,succeeded=14d,failed=90d,dead=90d",
		"`DURATION` that closed jobs are kept; outcomes and queues may differ, and 0 keeps none: 7d,cancelled=2d,mail:succeeded=0", nil,
		func(s *settings, v string) (err error) {
			s.app.Keep, s.app.KeepByStatus, s.app.KeepByQueue, err = parseKeep(v)
			return err
		},
	},
	{
		"keep-events",
		[]string{"OUTBOX_KEEP_EVENTS"},
		"7d", "`DURATION` that events are kept", nil,
		func(s *settings, v string) (err error) {
			s.app.KeepEvents, err = parseDuration(v, 24*time.Hour, 100*365*24*time.Hour)
			return err
		},
	},
	{
		"keep-inbox",
		[]string{"OUTBOX_KEEP_INBOX"},
		"14d", "`DURATION` that inbox.Once remembers a message", nil,
		func(s *settings, v string) (err error) {
			s.app.KeepInbox, err = parseDuration(v, 24*time.Hour, 100*365*24*time.Hour)
			return err
		},
	},
	{
		"keep-audit",
		[]string{"OUTBOX_KEEP_AUDIT"},
		"365d", "`DURATION` that the audit is kept", nil,
		func(s *settings, v string) (err error) {
			s.app.KeepAudit, err = parseDuration(v, 30*24*time.Hour, 100*365*24*time.Hour)
			return err
		},
	},
	{
		"unread-events",
		[]string{"OUTBOX_UNREAD_EVENTS"},
		"hold", "older days of events that a sink has not read: `hold|lose`", nil,
		func(s *settings, v string) (err error) { s.app.LoseUnread, err = parseUnread(v); return err },
	},
	{
		"notify",
		[]string{"OUTBOX_NOTIFY"},
		string(outbox.NotifyCoalesced), "how \"posthaste enqueue\" wakes dispatchers, and \"publish\" relays: `off|transactional|coalesced`",
		nil,
		func(s *settings, v string) (err error) { s.notify, err = parseNotify(v); return err },
	},
	{
		"api-addr",
		[]string{"OUTBOX_API_ADDR"},
		"127.0.0.1:8080", "`HOST:PORT` of the API, for the role api; off where it is served over NATS only", nil,
		func(s *settings, v string) (err error) { s.apiAddr, err = parseAddrOrOff(v); return err },
	},
	{
		"api-database-url",
		[]string{"OUTBOX_API_DATABASE_URL"},
		"", "`URL` for the API, with a login of its own: the database restricts a member of outbox_api alone to its callers' tenants", showDSN,
		func(s *settings, v string) (err error) { s.server.DatabaseURL, err = parseDSN(v); return err },
	},
	{
		"api-rate",
		[]string{"OUTBOX_API_RATE"},
		"", "`N` requests per second that one caller may send to each process; further ones get a 429 (default: unlimited)", nil,
		func(s *settings, v string) (err error) { s.server.API.RequestsLimit, err = parseAPIRate(v); return err },
	},
	{
		"oidc-issuer",
		[]string{"OUTBOX_OIDC_ISSUER"},
		"", "`URL` of an OpenID Connect provider whose JWTs the API accepts, exactly as in their claim iss", nil,
		func(s *settings, v string) error { s.oidc.Issuer = v; return nil },
	},
	{
		"oidc-audience",
		[]string{"OUTBOX_OIDC_AUDIENCE"},
		"", "`NAME` of this API at the provider; the claim aud must contain it", nil,
		func(s *settings, v string) error { s.oidc.Audience = v; return nil },
	},
	{
		"oidc-algorithms",
		[]string{"OUTBOX_OIDC_ALGORITHMS"},
		"", "accepted signature algorithms, separated by commas: `RS256,ES256` (default: every asymmetric one)", nil,
		func(s *settings, v string) error { s.oidc.Algorithms = strings.Split(v, ","); return nil },
	},
	{
		"oidc-name-claim",
		[]string{"OUTBOX_OIDC_NAME_CLAIM"},
		"sub", "`CLAIM` that names the caller, for the audit", nil,
		func(s *settings, v string) error { s.oidc.NameClaim = v; return nil },
	},
	{
		"oidc-tenant-claim",
		[]string{"OUTBOX_OIDC_TENANT_CLAIM"},
		"", "`CLAIM` that names the tenant; a JWT without it is refused (default: every JWT is for --oidc-tenant)", nil,
		func(s *settings, v string) error { s.oidc.TenantClaim = v; return nil },
	},
	{
		"oidc-tenants",
		[]string{"OUTBOX_OIDC_TENANTS"},
		"", "tenants by their names in that claim: `NAME=ID,…` (default: the claim holds the id)", nil,
		func(s *settings, v string) (err error) { s.oidc.Tenants, err = parseTenants(v); return err },
	},
	{
		"oidc-tenant",
		[]string{"OUTBOX_OIDC_TENANT"},
		"", "`ID` of every JWT's tenant, without --oidc-tenant-claim (default: the root tenant)", nil,
		func(s *settings, v string) (err error) { s.oidc.Tenant, err = outbox.ParseID(v); return err },
	},
	{
		"oidc-capability-claim",
		[]string{"OUTBOX_OIDC_CAPABILITY_CLAIM"},
		"scope", "`CLAIM` that lists the caller's capabilities", nil,
		func(s *settings, v string) error { s.oidc.CapabilityClaim = v; return nil },
	},
	{
		"oidc-capabilities",
		[]string{"OUTBOX_OIDC_CAPABILITIES"},
		"", "capabilities that each value of that claim grants: `VALUE=CAPABILITY+…,…` (default: a value is a capability)", nil,
		func(s *settings, v string) (err error) { s.oidc.Capabilities, err = parseCapabilities(v); return err },
	},
	{
		"oidc-all-tenants",
		[]string{"OUTBOX_OIDC_ALL_TENANTS"},
		"", "`VALUE` of that claim whose bearers see and act on the jobs of every tenant (default: none)", nil,
		func(s *settings, v string) error { s.oidc.AllTenants = v; return nil },
	},
	{
		"api-schemas",
		[]string{"OUTBOX_API_SCHEMAS"},
		"", "`FOLDER` of files KIND.schema.json against which the API checks payloads", nil,
		func(s *settings, v string) (err error) { s.server.API.Kinds, err = readSchemas(v); return err },
	},
	{
		"console-addr",
		[]string{"OUTBOX_CONSOLE_ADDR"},
		"", "`HOST:PORT` of the console, for the role console (default: below /console/ of the API's address)", nil,
		func(s *settings, v string) (err error) {
			if v != "" {
				s.server.ConsoleAddr, err = parseAddr(v)
			}
			return err
		},
	},
	{
		"api-audit-reads",
		[]string{"OUTBOX_API_AUDIT_READS"},
		"off", "record in the audit who reads a payload, or the results of steps, through the API: `on|off`", nil,
		func(s *settings, v string) (err error) { s.server.API.AuditReads, err = parseSwitch(v); return err },
	},
	{
		"console-url",
		[]string{"OUTBOX_CONSOLE_URL"},
		"", "public `URL` of the console; with https the cookie is Secure, and other hosts are refused (default: any host)", nil,
		func(s *settings, v string) (err error) { s.console.PublicURL, err = parseConsoleURL(v); return err },
	},
	{
		"console-key",
		[]string{"OUTBOX_CONSOLE_KEY"},
		"", "`KEY` that seals the console's sessions, base64 of 32 bytes; after a comma the previous one (default: a key of this process's lifetime)", func(string) string { return redacted },
		func(s *settings, v string) (err error) { s.console.Keys, err = parseConsoleKeys(v); return err },
	},
	{
		"console-name",
		[]string{"OUTBOX_CONSOLE_NAME"},
		"", "`NAME` of this instance, which each page shows (default: the name of the database)", nil,
		func(s *settings, v string) error { s.console.Name = v; return nil },
	},
	{
		"console-read-only",
		[]string{"OUTBOX_CONSOLE_READ_ONLY"},
		"off", "refuse all changes in the console: `on|off`", nil,
		func(s *settings, v string) (err error) { s.console.ReadOnly, err = parseSwitch(v); return err },
	},
	{
		"console-audit-reads",
		[]string{"OUTBOX_CONSOLE_AUDIT_READS"},
		"off", "record in the audit who reveals masked values or downloads a payload or result: `on|off`", nil,
		func(s *settings, v string) (err error) { s.console.AuditReads, err = parseSwitch(v); return err },
	},
	{
		"console-manual-url",
		[]string{"OUTBOX_CONSOLE_MANUAL_URL"},
		"", "`URL` of the manual, where a proxy does not forward /manual/ of this address (default: /manual/)", nil,
		func(s *settings, v string) error { s.console.Manual = v; return nil },
	},
	{
		"console-trace-url",
		[]string{"OUTBOX_CONSOLE_TRACE_URL"},
		"", "`URL` of a job's trace, with {trace_id} in it: https://traces.example.org/trace/{trace_id} (default: no link)", nil,
		func(s *settings, v string) error { s.console.TraceURL = v; return console.CheckLink(v, "{trace_id}") },
	},
	{
		"console-log-url",
		[]string{"OUTBOX_CONSOLE_LOG_URL"},
		"", "`URL` of a job's logs, with {job_id} in it, and perhaps {trace_id} (default: no link)", nil,
		func(s *settings, v string) error { s.console.LogURL = v; return console.CheckLink(v, "{job_id}") },
	},
	{
		"console-oidc-client",
		[]string{"OUTBOX_CONSOLE_OIDC_CLIENT"},
		"", "`ID` of the console at the provider of --oidc-issuer: users sign in there and return to callback below --console-url (default: they sign in with tokens)", nil,
		func(s *settings, v string) error { s.signIn.ClientID = v; return nil },
	},
	{
		"console-oidc-secret",
		[]string{"OUTBOX_CONSOLE_OIDC_SECRET"},
		"", "`SECRET` of that client (default: a public client)", func(string) string { return redacted },
		func(s *settings, v string) error { s.signIn.ClientSecret = v; return nil },
	},
	{
		"console-oidc-scopes",
		[]string{"OUTBOX_CONSOLE_OIDC_SCOPES"},
		"profile,email", "`SCOPES` that the console requests in addition to openid, such as offline_access if refresh tokens require it", nil,
		func(s *settings, v string) (err error) { s.signIn.Scopes, err = parseScopes(v); return err },
	},
	{
		"console-oidc-recheck",
		[]string{"OUTBOX_CONSOLE_OIDC_RECHECK"},
		"5m", "`DURATION` between checks with the provider that a user may still sign in", nil,
		func(s *settings, v string) (err error) {
			s.console.Recheck, err = parseDuration(v, time.Second, 30*time.Minute)
			return err
		},
	},
	{
		"admin-addr",
		[]string{"OUTBOX_ADMIN_ADDR"},
		"127.0.0.1:9090", "`HOST:PORT` of /livez, /readyz, /metrics and /debug/pprof/, or off; it requires no login",
		nil,
		func(s *settings, v string) (err error) { s.app.AdminAddr, err = parseAddrOrOff(v); return err },
	},
	{
		"pprof",
		[]string{"OUTBOX_PPROF"},
		"on", "serve /debug/pprof/ on the admin address: `on|off`", nil,
		func(s *settings, v string) error { return parseOff(v, &s.app.NoPprof) },
	},
	{
		"drain-delay",
		[]string{"OUTBOX_DRAIN_DELAY"},
		"0s", "`DURATION` between unready and shutdown, during which proxies may still send requests to the API", nil,
		func(s *settings, v string) (err error) {
			s.app.DrainDelay, err = parseDuration(v, 0, 10*time.Minute)
			return err
		},
	},
	{
		"log-jobs",
		[]string{"OUTBOX_LOG_JOBS"},
		string(dispatcher.LogAll), "which lines about jobs are logged: `all|failures|off`", nil,
		func(s *settings, v string) error {
			mode, err := parseOneOf(v, string(dispatcher.LogAll), string(dispatcher.LogFailures),
				string(dispatcher.LogNone))
			s.app.LogJobs = dispatcher.LogJobs(mode)
			return err
		},
	},
	{
		"trace",
		[]string{"OUTBOX_TRACE"},
		string(tracing.Auto),
		"relation of attempts' spans to producers' spans, if OTEL_EXPORTER_OTLP_ENDPOINT is set: `auto|link|parent|off`", nil,
		func(s *settings, v string) (err error) {
			s.trace, err = parseOneOf(v, string(tracing.Auto), string(tracing.Link), string(tracing.Parent), "off")
			return err
		},
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

// apiSettings lead the operators' commands to the API. A process that serves does not use them.
var apiSettings = []setting{
	{
		"api",
		[]string{"OUTBOX_API_URL"},
		"", "`URL` of the API to use instead of the database", showAPI,
		func(s *settings, v string) (err error) { s.apiURL, err = parseAPI(v); return err },
	},
	{
		"token",
		[]string{"OUTBOX_API_TOKEN"},
		"", "bearer `TOKEN` for the API; the variable hides it from other users of this machine", func(string) string {
			return redacted
		},
		func(s *settings, v string) (err error) { s.apiToken, err = parseToken(v); return err },
	},
}

func (s settings) has(role string) bool { return slices.Contains(s.roles, role) }

// withRoles switches off what the process is not to do.
func (s settings) withRoles() settings {
	has := s.has
	s.app.NoDispatch = s.app.NoDispatch || !has("dispatch")
	s.app.NoReap = s.app.NoReap || !has("reap")
	s.app.NoListen = s.app.NoListen || !has("dispatch") // nobody to wake
	s.noRelay = s.noRelay || !has("relay")
	s.app.NoSchedule = s.app.NoSchedule || !has("dispatch") && !has("reap")
	if has("console") {
		s.server.Console, s.server.NoAPI = &s.console, !has("api")
		if s.signIn.ClientID != "" {
			s.signIn.Provider, s.console.OIDC = s.oidc, &s.signIn
		}
		if s.server.ConsoleAddr == "" {
			s.server.Addr = s.apiAddr
		}
	}
	if has("api") {
		s.server.Addr = s.apiAddr
	}
	if has("api") || has("console") {
		s.server.Manual = site.Handler()
		people := s.signIn.ClientID != "" && s.oidc.Audience == "" // the issuer is only for them
		if s.oidc.Issuer != "" && !people {
			s.server.OIDC = &s.oidc
		}
	}
	return s
}

func parseGracePeriod(s *settings, v string) (err error) {
	s.app.GracePeriod, err = parseDuration(v, 0, 24*time.Hour)
	if s.app.GracePeriod == 0 {
		s.app.GracePeriod = -1 // there, zero means the default
	}
	return err
}

func parseOff(v string, off *bool) error {
	on, err := parseSwitch(v)
	*off = !on
	return err
}

// quoted returns an invalid value in the form that is shown.
func quoted(v string) string { return strconv.Quote(v) }
