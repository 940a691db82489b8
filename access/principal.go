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

// Capability is something that a caller may be allowed to do.
type Capability string

// The capabilities. Reading jobs does not include their payloads.
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

// ParseCapability reads a capability as it is written in tokens and claims.
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

// Principal is who calls. The zero Principal may do nothing. Its map is shared
// and must not be changed.
type Principal struct {
	Name         string    // for people and the audit: a token's name, or a JWT's subject
	Tenant       outbox.ID // owns what the caller enqueues
	AllTenants   bool      // sees and acts on the jobs of every tenant, not of Tenant alone
	Capabilities map[Capability]bool
}

// Can reports whether the principal has the capability.
func (p Principal) Can(c Capability) bool { return p.Capabilities[c] }

// LogValue names who it is.
func (p Principal) LogValue() slog.Value {
	tenant := p.Tenant.String()
	if p.AllTenants {
		tenant = allTenants
	}
	return slog.GroupValue(slog.String("name", p.Name), slog.String("tenant", tenant))
}

// allTenants stands for every tenant where one is named.
const allTenants = "*"

// ErrUnauthenticated says that a bearer is not good: malformed, unknown, wrong,
// expired or revoked. What it is wrapped in names the reason for the log; callers
// must learn no more than that they are not known. Any other error says that the
// bearer could not be judged, because the database or the provider is away.
var ErrUnauthenticated = errors.New("unauthenticated")

// ErrProviderAway says that a JWT could not be judged: the provider would have to
// be asked, and does not answer.
var ErrProviderAway = errors.New("the OpenID Connect provider does not answer")

// Authenticator tells who a bearer is. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns the principal of a bearer, an error that is
	// [ErrUnauthenticated], or another one if it could not be judged.
	Authenticate(ctx context.Context, bearer string) (Principal, error)
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnauthenticated, fmt.Sprintf(format, args...))
}

// grant makes a set of the capabilities that are known; others grant nothing: a
// newer build may know them.
func grant(names []string) map[Capability]bool {
	granted := make(map[Capability]bool, len(names))
	for _, name := range names {
		if c, err := ParseCapability(name); err == nil {
			granted[c] = true
		}
	}
	return granted
}
