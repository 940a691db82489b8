package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// parseTenants parses a provider's names for tenants: acme=01976f0e-…,umbrella=….
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

// parseCapabilities parses what a provider's roles grant: operator=admin.read+admin.mutate,client=jobs.enqueue.
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

// parseScopes parses the scopes that the console requests from a provider, separated by commas or spaces.
func parseScopes(v string) ([]string, error) {
	scopes := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
	for _, scope := range scopes {
		if strings.ContainsAny(scope, "\"\\") ||
			strings.ContainsFunc(scope, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
			return nil, fmt.Errorf("%.80q is no scope", scope)
		}
	}
	return append([]string{}, scopes...), nil
}

// checkSignIn returns every mistake in the settings for signing in to the console at a provider.
func (s settings) checkSignIn() error {
	if s.server.Console == nil || s.console.OIDC == nil {
		return nil
	}
	if s.console.PublicURL == "" {
		return usagef("--console-oidc-client needs --console-url: the provider sends people back to callback below it")
	}
	if s.oidc.Issuer == "" {
		return usagef("--console-oidc-client needs --oidc-issuer: that of the provider")
	}
	in := *s.console.OIDC
	in.CallbackURL, _ = url.JoinPath(s.console.PublicURL, "callback") // it was validated
	if err := in.Validate(); err != nil {
		return usagef("--console-oidc-…, --oidc-…: %w", err)
	}
	return nil
}
