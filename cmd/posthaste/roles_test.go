package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/server"
)

func TestRolesSwitchOffWhatIsNotToBeDone(t *testing.T) {
	type duties struct {
		Dispatch, Listen, Reap bool
		API                    string
	}
	for roles, want := range map[string]duties{
		"dispatch,reap":       {true, true, true, ""},
		"dispatch":            {true, true, false, ""},
		"reap":                {false, false, true, ""},
		"api":                 {false, false, false, "addr"},
		"api, dispatch, reap": {true, true, true, "addr"},
		"console":             {false, false, false, "addr"},
	} {
		parsed, err := parseRoles(roles)
		if err != nil {
			t.Fatal(err)
		}
		s := settings{roles: parsed, apiAddr: "addr"}.withRoles()
		got := duties{!s.app.NoDispatch, !s.app.NoListen, !s.app.NoReap, s.server.Addr}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("roles %s (-want +got):\n%s", roles, diff)
		}
	}
	for _, elsewhere := range []string{"", "other"} {
		s := settings{roles: []string{"console"}, apiAddr: "addr"}
		s.server.ConsoleAddr = elsewhere
		if s = s.withRoles(); s.server.Console == nil || !s.server.NoAPI || (s.server.Addr == "") != (elsewhere != "") {
			t.Errorf("the console at %q: got %+v", elsewhere, s.server)
		}
	}
	s := settings{roles: []string{"dispatch", "reap"}}
	s.app.NoDispatch = true
	if s = s.withRoles(); !s.app.NoDispatch {
		t.Error("a role switched on what was switched off")
	}
	for _, roles := range []string{"", "consoles", "dispatch;api"} {
		if _, err := parseRoles(roles); err == nil {
			t.Errorf("roles %q are taken", roles)
		}
	}
}

func TestServeRefusesToDoNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for line, want := range map[string]string{
		"--role api --api-addr off":                                            "api is served nowhere",
		"--role dispatch,api --api-addr off":                                   "api is served nowhere",
		"--role console --api-addr off":                                        "console is served nowhere",
		"--role api,console --console-addr off":                                "want HOST:PORT like 127.0.0.1:9090\n",
		"--role api --api-addr nowhere":                                        "want HOST:PORT like 127.0.0.1:9090, or off",
		"--role relay":                                                         "needs --relay-config",
		"--role api,relay":                                                     "needs --relay-config",
		"--dispatch off --reap off --schedule off --relay off":                 "nothing to do",
		"--role dispatch --dispatch off --schedule off":                        "nothing to do",
		"--role api --api-addr 127.0.0.1:7 --admin-addr 127.0.0.1:7":           "want another",
		"--role api --oidc-audience a":                                         "--oidc-audience needs --oidc-issuer",
		"--role reap --admin-addr " + taken.Addr().String():                    "--admin-addr (OUTBOX_ADMIN_ADDR): listen",
		"--role api --admin-addr off --api-addr " + taken.Addr().String() + "": "--api-addr (OUTBOX_API_ADDR): listen",
	} {
		r := posthaste(t, env{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}, "", append([]string{"serve"}, strings.Fields(line)...)...)
		if code := exitUsage; r.code != code && !strings.Contains(want, "listen") || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: exit status %d and %q, want %q", line, r.code, r.errOut, want)
		}
	}
}

// Roles are a set: the default ones in another order, or with one of them twice, are still the default.
func TestTheOrderOfRolesDoesNotMatter(t *testing.T) {
	t.Parallel()
	for roles, taken := range map[string]bool{
		"dispatch,reap,relay": true, "relay, dispatch, reap": true, "reap,relay,dispatch,reap": true,
		"relay,reap": false, "api,dispatch,reap,relay": false,
	} {
		parsed, err := parseRoles(roles)
		if err != nil {
			t.Fatal(err)
		}
		if err := (settings{roles: parsed, apiAddr: "addr"}).withRoles().checkDuties(); (err == nil) != taken {
			t.Errorf("roles %s without a relay-config: %v, want taken %t", roles, err, taken)
		}
	}
}

// An address that is off leaves over what is served elsewhere.
func TestAnAPIMayBeOff(t *testing.T) {
	t.Parallel()
	overNATS := &relayConfig{RPC: &natsService{}}
	for name, s := range map[string]settings{
		"api over NATS":       {roles: []string{"api"}, relayConfig: overNATS},
		"console elsewhere":   {roles: []string{"console"}, server: server.Config{ConsoleAddr: "127.0.0.1:7"}},
		"console and NATS":    {roles: []string{"api", "console"}, relayConfig: overNATS, server: server.Config{ConsoleAddr: "127.0.0.1:7"}},
		"neither of the both": {roles: []string{"dispatch"}},
	} {
		if err := s.withRoles().checkDuties(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A setting that is in no list would never be warned of.
func TestEachSettingHasAUse(t *testing.T) {
	t.Parallel()
	var listed, all []string
	for _, use := range uses {
		listed = append(listed, use.flags...)
	}
	for _, s := range allSettings {
		all = append(all, s.flag)
	}
	slices.Sort(listed)
	slices.Sort(all)
	if diff := cmp.Diff(all, listed); diff != "" {
		t.Errorf("settings with a use (-all +listed):\n%s", diff)
	}
}

func TestDevNamesWhatItDoesNotRead(t *testing.T) {
	t.Parallel()
	given := env{
		"OUTBOX_SCHEDULE": "off", "OUTBOX_LISTEN_URL": "postgres://h/d", "DATABASE_URL": "postgres://h/d",
		"OUTBOX_ROLE": "reap", "OUTBOX_NOTIFY": "off", "OUTBOX_OIDC_ISSUER": "",
	}
	p := &program{getenv: func(name string) string { return given[name] }}
	if got := strings.Join(p.unreadByDev(), "\n"); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, "OUTBOX_LISTEN_URL has no effect") || !strings.Contains(got, "OUTBOX_ROLE has no effect") {
		t.Errorf("notes:\n%s", got)
	}
	for _, flag := range devSettings {
		if !slices.ContainsFunc(allSettings, func(s setting) bool { return s.flag == flag }) {
			t.Errorf("dev has a setting %s, which nothing else has", flag)
		}
	}
}

func TestIdleFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"--role api --webhook a=http://x --queues a":                "--queues --webhook",
		"--role dispatch --api-addr 127.0.0.1:1 --keep 2d":          "--api-addr --keep",
		"--listen off --listen-url postgres://h/d":                  "--listen-url",
		"--notify off --worker w --lease-ttl 5s --poll-interval 5s": "--notify",
		"--role reap --worker w --lease-ttl 5s --poll-interval 5s --grace-period 1s --dispatch off --relay off --listen off --schedule off": "--dispatch --lease-ttl --listen --poll-interval --relay --worker",
		"--role dispatch --api-database-url postgres://h/d --reap off --dispatch off":                                                       "--api-database-url --reap",
		"--role console --console-addr 127.0.0.1:1 --api-addr 127.0.0.1:2 --oidc-audience a --api-rate 1":                                   "--api-addr --api-rate",
		"--role dispatch --admin-addr off --pprof off":                                                                                      "--pprof",
		"--role api,console --api-rate 1 --console-name x":                                                                                  "",
		"--webhook a=http://x --keep 2d --job-timeout 1s --log-jobs all":                                                                    "",
	} {
		p := &program{getenv: func(string) string { return "" }}
		command := &cli.Command{Flags: flags(), Action: func(_ context.Context, c *cli.Command) error {
			s, err := p.load(c)
			if got := strings.Join(s.withRoles().idle(c), " "); err != nil || got != want {
				t.Errorf("%s: idle are %q, %v; want %q", line, got, err, want)
			}
			return nil
		}}
		if err := command.Run(t.Context(), append([]string{"posthaste"}, strings.Fields(line)...)); err != nil {
			t.Error(err)
		}
	}
}
