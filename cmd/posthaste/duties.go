package main

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"
)

// defaultRoles are the roles of a process that names none, sorted; its relay waits for a relay-config.
const defaultRoles = "dispatch,reap,relay"

// checkDuties refuses settings, after withRoles, with which a process would be ready but do nothing, or not what was
// asked.
func (s settings) checkDuties() error {
	serves := s.server.Addr != "" || s.server.Console != nil
	roles := slices.Compact(slices.Sorted(slices.Values(s.roles))) // they form a set
	if !s.noRelay && s.relayConfig == nil && strings.Join(roles, ",") != defaultRoles {
		return usagef("the role relay needs --relay-config: it says what is published where")
	}
	if s.app.NoDispatch && s.app.NoReap && s.app.NoSchedule && s.noRelay && !serves {
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

// idle lists the flags of a command line that have no effect, after withRoles. It leaves out variables, because several
// processes may share their environment.
func (s settings) idle(c *cli.Command) (flags []string) {
	api, console := s.server.Addr != "" && !s.server.NoAPI, s.server.Console != nil
	for prefix, used := range map[string]bool{
		"webhook": !s.app.NoDispatch, "queues": !s.app.NoDispatch, "job-timeout": !s.app.NoDispatch,
		"log-jobs": !s.app.NoDispatch,
		"keep":     !s.app.NoReap, "unread-events": !s.app.NoReap, "listen-url": !s.noListen,
		"api-addr": api || console, "api-rate": api, "api-schemas": api, "oidc-": api || console, "console-": console,
	} {
		for _, flag := range allSettings {
			if !used && strings.HasPrefix(flag.flag, prefix) && c.IsSet(flag.flag) {
				flags = append(flags, "--"+flag.flag)
			}
		}
	}
	slices.Sort(flags)
	return flags
}

// whoseAddress maps the settings that an address in use may come from.
var whoseAddress = strings.NewReplacer(
	"admin address:", "--admin-addr (OUTBOX_ADMIN_ADDR):", "API address:", "--api-addr (OUTBOX_API_ADDR):",
	"console address:", "--console-addr (OUTBOX_CONSOLE_ADDR):",
)

// namingAddress adds the setting to an error about an address in use.
func namingAddress(err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return errors.New(whoseAddress.Replace(err.Error()))
}
