package pgdev

import (
	"strings"
	"testing"
)

func TestAServerBeginsWithWhatInitdbMadeForAnother(t *testing.T) { // not parallel: it sets a variable
	const identifier = `SELECT system_identifier::text FROM pg_control_system()`
	first := start(t, Options{Fast: true, KeepInitial: true})
	if err := exec1(t.Context(), first.URL(), "CREATE DATABASE later"); err != nil {
		t.Fatal(err)
	}
	made, want := first.Initial(), query(t, first.URL(), identifier)
	programs, folder, _ := strings.Cut(made, ":")
	for name, test := range map[string]struct {
		value   string
		options Options
		copied  bool
	}{
		"the same programs":  {made, Options{}, true},
		"another clock":      {made, Options{Env: []string{"CLOCK=wrong"}}, false},
		"other programs":     {"/elsewhere:" + folder, Options{}, false},
		"the folder is gone": {programs + ":" + folder + "/gone", Options{}, false},
	} {
		t.Setenv(InitialVariable, test.value)
		s := start(t, test.options)
		if got := query(t, s.URL(), identifier); (got == want) != test.copied {
			t.Errorf("%s: system identifier %s, the other has %s: want a copy: %t", name, got, want, test.copied)
		}
		if got := query(t, s.URL(), `SELECT count(*)::text FROM pg_database`); got != "3" {
			t.Errorf("%s: %s databases, want the 3 of initdb", name, got)
		}
		if s.Initial() != "" {
			t.Errorf("%s: what initdb made was kept by a server that was not told to", name)
		}
	}
}
