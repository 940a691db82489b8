package redis

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/posthaste-dev/posthaste/relay"
)

// Check implements [relay.Sink]. It does not check streams with placeholders, a * or >, in their names.
func (s *Sink) Check(ctx context.Context, destinations []string) ([]relay.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer c.guard(ctx)()
	findings, err := c.durability()
	if err != nil {
		return nil, err
	}
	findings = append(findings, c.replay()...)
	seen := map[string]bool{}
	var open []string
	for _, name := range destinations {
		switch {
		case seen[name]:
		case strings.ContainsAny(name, "*>"):
			open = append(open, name)
		default:
			found, err := c.stream(name, s.config.CreateStreams)
			if err != nil {
				return nil, err
			}
			findings = append(findings, found...)
		}
		seen[name] = true
	}
	return append(findings, relay.NotChecked(open)...), nil
}

// durability returns the findings about the server's settings for the durability of acknowledged messages.
func (c *conn) durability() (all []relay.Finding, err error) {
	settings := map[string]string{}
	for _, name := range []string{"appendonly", "appendfsync", "maxmemory", "maxmemory-policy"} {
		got, err := redis.StringMap(c.Do("CONFIG", "GET", name))
		switch {
		case word(err) == "NOPERM" || word(err) == "ERR": // a service without CONFIG
			return []relay.Finding{{
				Severity: relay.SeverityNote,
				What:     "we may not see the server's settings, so not how durable its acknowledgements are",
				Remedy:   "allow the user +config|get, or look for appendonly and appendfsync",
			}}, nil
		case err != nil:
			return nil, away(fmt.Errorf("look at the server's settings: %w", err))
		}
		maps.Copy(settings, got)
	}
	if settings["appendonly"] == "no" {
		all = append(all, relay.Finding{
			Severity: relay.SeverityWarning,
			What:     "appendonly is no: a restart loses every message since the last snapshot",
			Remedy:   "set appendonly yes and appendfsync always",
		})
	} else if fsync := settings["appendfsync"]; fsync != "always" {
		all = append(all, relay.Finding{
			Severity: relay.SeverityWarning,
			What: fmt.Sprintf("appendfsync is %s: a crash of the machine loses messages that were acknowledged",
				fsync),
			Remedy: "set appendfsync always",
		})
	}
	if policy := settings["maxmemory-policy"]; policy != "noeviction" && settings["maxmemory"] != "0" {
		all = append(all, relay.Finding{
			Severity: relay.SeverityProblem,
			What: fmt.Sprintf("maxmemory-policy is %s: the server deletes whole streams when memory is short",
				policy),
			Remedy: "set maxmemory-policy noeviction: then publishing waits",
		})
	}
	return all, nil
}

// replay returns a finding if the server cannot read its own file again. It reads the file as the user default, and
// leaves out transactions that this user may not run, with a line in its log. Servers before 7.0, and users without the
// permission to ask, give no answer.
func (c *conn) replay() []relay.Finding {
	answer, err := redis.String(c.Do("ACL", "DRYRUN", "default", "XADD", "events", "*", "id", "1"))
	if err != nil || answer == "OK" {
		return nil
	}
	return []relay.Finding{{
		Severity: relay.SeverityProblem,
		What:     "the user default may not run XADD: after a restart the server leaves out what was published, because it reads its file as this user",
		Remedy:   "ACL SETUSER default off ~* &* +@all: a user that is off cannot log in",
	}}
}

// stream inspects one stream.
func (c *conn) stream(name string, create bool) ([]relay.Finding, error) {
	what := fmt.Sprintf("stream %q", name)
	kind, err := redis.String(c.Do("TYPE", name))
	switch {
	case word(err) == "NOPERM":
		return []relay.Finding{{
			Severity: relay.SeverityWarning, What: "we may not look at " + what,
			Remedy: "allow the user +type and +xadd on it",
		}}, nil
	case err != nil:
		return nil, away(fmt.Errorf("look at %s: %w", what, err))
	case kind == "none" && !create:
		return []relay.Finding{{
			Severity: relay.SeverityProblem, What: "there is no " + what,
			Remedy: "create it, with XGROUP CREATE … MKSTREAM: until then its messages wait",
		}}, nil
	case !slices.Contains([]string{"none", "stream"}, kind):
		return []relay.Finding{{
			Severity: relay.SeverityProblem, What: fmt.Sprintf("%s is a %s, and no stream", what, kind),
			Remedy: "use another name",
		}}, nil
	}
	return nil, nil
}
