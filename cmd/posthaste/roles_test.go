package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
