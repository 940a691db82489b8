package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"
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
		"--role relay":     "needs --relay-config",
		"--role api,relay": "needs --relay-config",
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
		if err := (settings{roles: parsed}).withRoles().checkDuties(); (err == nil) != taken {
			t.Errorf("roles %s without a relay-config: %v, want taken %t", roles, err, taken)
		}
	}
}

func TestIdleFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"--role api --webhook a=http://x --queues a":                     "--queues --webhook",
		"--role dispatch --api-addr 127.0.0.1:1 --keep 2d":               "--api-addr --keep",
		"--listen off --listen-url postgres://h/d":                       "--listen-url",
		"--role api,console --api-rate 1 --console-name x":               "",
		"--webhook a=http://x --keep 2d --job-timeout 1s --log-jobs all": "",
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
