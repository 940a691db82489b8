package main

import (
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// parseTenants reads the names that a provider has for tenants: acme=01976f0e-…,umbrella=….
func parseTenants(v string) (map[string]outbox.ID, error) {
	tenants := map[string]outbox.ID{}
	for part := range strings.SplitSeq(v, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		id, err := outbox.ParseID(text)
		if err != nil || id.IsZero() || name == "" || !tenants[name].IsZero() {
			return nil, fmt.Errorf("%.80q is not NAME=ID, each name once", part)
		}
		tenants[name] = id
	}
	return tenants, nil
}

// parseCapabilities reads what a provider's roles grant:
// operator=admin.read+admin.mutate,client=jobs.enqueue.
func parseCapabilities(v string) (map[string][]access.Capability, error) {
	granted := map[string][]access.Capability{}
	for part := range strings.SplitSeq(v, ",") {
		value, list, found := strings.Cut(strings.TrimSpace(part), "=")
		if !found || value == "" || granted[value] != nil {
			return nil, fmt.Errorf("%.80q is not VALUE=CAPABILITY+CAPABILITY…, each value once", part)
		}
		for name := range strings.SplitSeq(list, "+") {
			capability, err := access.ParseCapability(name)
			if err != nil {
				return nil, err
			}
			granted[value] = append(granted[value], capability)
		}
	}
	return granted, nil
}
