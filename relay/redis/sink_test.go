package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/relay"
)

func TestNothingOfAKeyIsStoredBehindAStreamThatIsNone(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.do("set", "events.text", "x")
	s := b.open(b.config())
	defer func() { _ = s.Close() }()
	all := make([]relay.Message, 300)
	for i := range all {
		all[i] = relay.Message{ID: fmt.Sprint(i), Key: fmt.Sprint(i % 10), Destination: stream}
	}
	all[157].Destination = "events.text"
	errs := s.Publish(t.Context(), all)
	refused, ok := errors.AsType[*relay.RefusedError](errs[157])
	if !ok || refused.Code != relay.CodeRefused || !strings.Contains(refused.Error(), "WRONGTYPE") {
		t.Errorf("%v", errs[157])
	}
	if got := len(b.received(stream)); got != 285 {
		t.Errorf("%d are stored, want 285: none behind the one that was refused", got)
	}
}

// A server that has become a replica of another takes nothing until it is none any more.
func TestAReplicaIsReadOnly(t *testing.T) {
	t.Parallel()
	b, primary := start(t), start(t)
	s := b.open(b.config())
	defer func() { _ = s.Close() }()
	all := make([]relay.Message, 10)
	for i := range all {
		all[i] = relay.Message{ID: fmt.Sprint(i), Key: fmt.Sprint(i % 3), Destination: stream}
	}
	b.do("replicaof", primary.Address[:strings.LastIndexByte(primary.Address, ':')], primary.Address[strings.LastIndexByte(primary.Address, ':')+1:])
	errs := s.Publish(t.Context(), all)
	unavailable, ok := errors.AsType[*relay.UnavailableError](errs[0])
	if !ok || unavailable.Code != relay.CodeUnavailable || word(unavailable.Err) != "READONLY" {
		t.Errorf("%v", errs[0])
	}
	b.do("replicaof", "no", "one")
	// It may be reading what it has got of the primary, or beginning its file anew, and answer late.
	for began := time.Now(); s.Probe(t.Context()) != nil && time.Since(began) < time.Minute; {
		time.Sleep(20 * time.Millisecond)
	}
	for i, err := range s.Publish(t.Context(), all) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := start(t, "--appendfsync", "everysec", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru")
	b.do("set", "events.text", "x")
	b.do("acl", "setuser", "default", "-@all")
	s := b.open(b.config())
	defer func() { _ = s.Close() }()
	findings, err := s.Check(t.Context(), []string{stream, "events.none", "events.text", "forbidden", "events.*"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, string(f.Severity)+": "+f.What)
	}
	want := []string{
		"warning: appendfsync is everysec: a crash of the machine loses messages that were acknowledged",
		"problem: maxmemory-policy is allkeys-lru: the server deletes whole streams when memory is short",
		"problem: the user default may not run XADD: after a restart the server leaves out what was published, because it reads its file as this user",
		`problem: there is no stream "events.none"`,
		`problem: stream "events.text" is a string, and no stream`,
		`warning: we may not look at stream "forbidden"`,
		"note: not checked, because events fill in parts of their names: events.*",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// A user with the permissions that docs/operate/sinks.md names publishes, and Check sees the settings.
func TestTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	b := start(t)
	publish := []any{"+xadd", "+multi", "+exec", "+ping", "+client|setname"}
	for name, test := range map[string]struct {
		permissions []any
		database    string
		unseen      int // findings that say what Check may not see
	}{
		"to publish":          {publish, "", 2},
		"to another database": {append(publish[:5:5], "+select"), "/2", 2},
		"to check":            {append(publish[:5:5], "+config|get", "+type", "+acl|dryrun"), "", 0},
	} {
		b.do(append([]any{"acl", "setuser", "relay", "-@all"}, test.permissions...)...)
		config := b.config()
		config.URL, config.CreateStreams = strings.TrimSuffix(config.URL, "/0")+test.database, true
		s := b.open(config)
		if errs := s.Publish(t.Context(), []relay.Message{{ID: "1", Destination: stream}}); errs[0] != nil {
			t.Errorf("%s: %v", name, errs[0])
		}
		findings, err := s.Check(t.Context(), []string{stream})
		unseen := 0
		for _, f := range findings {
			if strings.Contains(f.What, "we may not") {
				unseen++
			}
		}
		if err != nil || unseen != test.unseen {
			t.Errorf("%s: %v, %v; want %d things unseen", name, findings, err, test.unseen)
		}
		_ = s.Close()
	}
}

// Without MULTI a server carries out each command of a transaction by itself, and what it says is not of the messages.
func TestWithoutTransactionsNothingIsStored(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"multi", "exec"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			permit := func(change string) {
				b.do("acl", "setuser", "relay", "-@all", "+xadd", "+multi", "+exec", "+ping", "+client|setname", change+command)
			}
			config := b.config()
			config.CreateStreams = true
			all := []relay.Message{{ID: "1", Key: "k", Destination: stream}, {ID: "2", Key: "k", Destination: stream}, {ID: "3", Destination: stream}}
			refused := func(what string, s *Sink) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				errs := s.Publish(ctx, all)
				away, ok := errors.AsType[*relay.UnavailableError](errs[0])
				if !ok || away.Code != relay.CodeForbidden || !strings.Contains(away.Error(), "NOPERM") {
					t.Errorf("%s: %v", what, errs)
				}
			}
			permit("-")
			s := b.open(config)
			defer func() { _ = s.Close() }()
			refused("at first", s)
			refused("again", s)
			if got := len(b.received(stream)); got != 0 {
				t.Errorf("%d messages are stored", got)
			}

			permit("+")
			if errs := s.Publish(t.Context(), all); errors.Join(errs...) != nil {
				t.Errorf("once it is permitted: %v", errs)
			}
			permit("-")
			refused("when it is not any more", s)
			stored := len(b.received(stream))
			if most := 2 * len(all); stored > most {
				t.Errorf("%d messages are stored, want %d at most", stored, most)
			}
			refused("for good", s)
			if got := len(b.received(stream)); got != stored {
				t.Errorf("%d messages more are stored", got-stored)
			}
		})
	}
}
