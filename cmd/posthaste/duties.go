package main

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
)

// defaultRoles are the roles of a process that names none, sorted; its relay waits for a relay-config.
const defaultRoles = "dispatch,reap,relay"

// checkDuties refuses settings, after withRoles, with which a process would be ready but do nothing, or not what was
// asked.
func (s settings) checkDuties() error {
	serves := s.server.Addr != "" || s.server.Console != nil
	overNATS := s.has("api") && s.relayConfig != nil && s.relayConfig.RPC != nil
	roles := slices.Compact(slices.Sorted(slices.Values(s.roles))) // they form a set
	if !s.noRelay && s.relayConfig == nil && strings.Join(roles, ",") != defaultRoles {
		return usagef("the role relay needs --relay-config: it says what is published where")
	}
	if s.has("api") && s.server.Addr == "" && !overNATS {
		return usagef("the role api is served nowhere: --api-addr is off, and no --relay-config has rpc")
	}
	if s.has("console") && s.server.Addr == "" && s.server.ConsoleAddr == "" {
		return usagef("the role console is served nowhere: --api-addr is off, and there is no --console-addr")
	}
	if s.app.NoDispatch && s.app.NoReap && s.app.NoSchedule && s.noRelay && !serves && !overNATS {
		return usagef("all that the roles %s do is off: there is nothing to do", strings.Join(s.roles, ","))
	}
	_, port, _ := net.SplitHostPort(s.app.AdminAddr)
	if s.app.AdminAddr != "" && port != "0" && serves && slices.Contains([]string{s.server.Addr, s.server.ConsoleAddr},
		s.app.AdminAddr) {
		return usagef("--admin-addr is %s, and so is --api-addr or --console-addr: want another", s.app.AdminAddr)
	}
	return nil
}

// checkProvider refuses settings of a provider that is not named.
func (p *program) checkProvider(c *cli.Command, s settings) error {
	if s.oidc.Issuer != "" || s.server.Addr == "" && s.server.Console == nil {
		return nil
	}
	for _, setting := range allSettings {
		if v := p.choose(c, setting); v.source != byDefault && strings.HasPrefix(setting.flag, "oidc-") {
			return usagef("%s needs --oidc-issuer: without it every JWT is refused", v.source)
		}
	}
	return nil
}

// uses lists for which processes the settings have an effect, after withRoles. Each setting is in one of the lists.
var uses = []struct {
	by    func(s settings) bool
	flags []string
}{
	{func(settings) bool { return true }, []string{
		"database-url", "role", "migrate", "grace-period", "drain-delay", "admin-addr", "trace", "log-level",
		"log-format",
	}},
	{func(s settings) bool { return s.app.AdminAddr != "" }, []string{"pprof"}},
	{func(s settings) bool { return s.has("dispatch") }, []string{"dispatch"}},
	{func(s settings) bool { return !s.app.NoDispatch }, []string{
		"queues", "worker", "poll-interval", "lease-ttl", "job-timeout", "webhook", "webhook-secret", "log-jobs",
	}},
	{func(s settings) bool { return s.has("dispatch") || s.has("reap") }, []string{"schedule"}},
	{func(s settings) bool { return s.has("reap") }, []string{"reap"}},
	{func(s settings) bool { return !s.app.NoReap }, []string{
		"keep", "keep-events", "keep-inbox", "keep-audit", "unread-events",
	}},
	{func(s settings) bool { return s.has("dispatch") || s.has("relay") }, []string{"listen"}},
	{func(s settings) bool { return !s.app.NoListen || !s.noRelay && !s.noListen }, []string{"listen-url"}},
	{func(s settings) bool { return s.has("relay") }, []string{"relay"}},
	{func(s settings) bool {
		c := s.relayConfig
		return s.has("relay") ||
			c != nil && (c.RPC != nil && s.has("api") || c.Presence != nil && !s.app.NoDispatch)
	}, []string{"relay-config"}},
	{func(s settings) bool { return s.has("api") || s.has("console") && s.server.ConsoleAddr == "" }, []string{
		"api-addr",
	}},
	{func(s settings) bool { return s.has("api") }, []string{"api-rate", "api-audit-reads"}},
	{func(s settings) bool { return s.has("api") || s.has("console") }, []string{
		"api-database-url", "api-schemas", "oidc-issuer", "oidc-audience", "oidc-algorithms", "oidc-name-claim",
		"oidc-tenant-claim", "oidc-tenants", "oidc-tenant", "oidc-capability-claim", "oidc-capabilities",
		"oidc-all-tenants",
	}},
	{func(s settings) bool { return s.has("console") }, []string{
		"console-addr", "console-url", "console-key", "console-name", "console-read-only", "console-audit-reads",
		"console-manual-url", "console-trace-url", "console-log-url", "console-oidc-client", "console-oidc-secret",
		"console-oidc-scopes", "console-oidc-recheck",
	}},
	{func(settings) bool { return false }, []string{"notify"}}, // of the commands that enqueue and publish
}

// idle lists the flags of a command line that have no effect, after withRoles. It leaves out variables, because several
// processes may share their environment.
func (s settings) idle(c *cli.Command) (flags []string) {
	for _, use := range uses {
		for _, flag := range use.flags {
			if c.IsSet(flag) && !use.by(s) {
				flags = append(flags, "--"+flag)
			}
		}
	}
	slices.Sort(flags)
	return flags
}

// addressSettings are the settings of the addresses that an [app.AddressError] names.
var addressSettings = map[string]string{
	"admin":   "--admin-addr (OUTBOX_ADMIN_ADDR)",
	"API":     "--api-addr (OUTBOX_API_ADDR)",
	"console": "--console-addr (OUTBOX_CONSOLE_ADDR)",
}

// namingAddress returns err with the setting of an address that is in use in place of what the address is of.
func namingAddress(err error) error {
	address, ok := errors.AsType[*app.AddressError](err)
	if !ok || !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	named := addressSettings[address.Of] + ": " + address.Err.Error()
	return errors.New(strings.Replace(err.Error(), address.Error(), named, 1)) // it may be one of several errors
}
