package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Capability is a permission that a caller may have.
type Capability string

// These are the capabilities. Reading jobs does not include their payloads.
const (
	JobsEnqueue Capability = "jobs.enqueue"
	JobsRead    Capability = "jobs.read"
	JobsCancel  Capability = "jobs.cancel"
	AdminRead   Capability = "admin.read"
	AdminMutate Capability = "admin.mutate"
	AdminStream Capability = "admin.stream"
	PayloadRead Capability = "payload.read"
)

// Capabilities returns every capability, in the order in which they are explained.
func Capabilities() []Capability {
	return []Capability{JobsEnqueue, JobsRead, JobsCancel, AdminRead, AdminMutate, AdminStream, PayloadRead}
}

// ParseCapability parses a capability as it is written in tokens and claims.
func ParseCapability(s string) (Capability, error) {
	if c := Capability(s); slices.Contains(Capabilities(), c) {
		return c, nil
	}
	names := make([]string, 0, 8)
	for _, c := range Capabilities() {
		names = append(names, string(c))
	}
	return "", fmt.Errorf("capability %q is unknown, want one of %s", s, strings.Join(names, ", "))
}

// Principal is an authenticated caller. The zero Principal may do nothing. Its map is shared and must not be changed.
type Principal struct {
	Name         string    // for display and the audit: a token's name, or a JWT's subject
	Tenant       outbox.ID // owns what the caller enqueues
	AllTenants   bool      // sees and acts on the jobs of every tenant, not only of Tenant
	Capabilities map[Capability]bool
}

// Can reports whether the principal has the capability.
func (p Principal) Can(c Capability) bool { return p.Capabilities[c] }

// LogValue returns fields that identify the principal.
func (p Principal) LogValue() slog.Value {
	tenant := p.Tenant.String()
	if p.AllTenants {
		tenant = allTenants
	}
	return slog.GroupValue(slog.String("name", p.Name), slog.String("tenant", tenant))
}

// allTenants stands for every tenant where one is named.
const allTenants = "*"

// ErrUnauthenticated reports that a bearer is not valid: malformed, unknown, wrong, expired or revoked. The wrapping
// error names the reason, for the log; callers must learn no more than that they are not authenticated. Any other error
// means that the bearer could not be checked, because the database or the provider is unavailable.
var ErrUnauthenticated = errors.New("unauthenticated")

// ErrProviderAway reports that a JWT could not be verified: the provider must be asked, and does not answer.
var ErrProviderAway = errors.New("the OpenID Connect provider does not answer")

// An Authenticator identifies bearers. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns the principal of a bearer, an error that is [ErrUnauthenticated], or another one if the
	// bearer could not be checked.
	Authenticate(ctx context.Context, bearer string) (Principal, error)
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnauthenticated, fmt.Sprintf(format, args...))
}

// grant returns the set of known capabilities among the names; others grant nothing, because they may come from a newer
// build.
func grant(names []string) map[Capability]bool {
	granted := make(map[Capability]bool, len(names))
	for _, name := range names {
		if c, err := ParseCapability(name); err == nil {
			granted[c] = true
		}
	}
	return granted
}
