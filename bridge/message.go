package bridge

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These are the headers of a job in addition to those of its message.
const (
	HeaderSource   = "inbox-source"   // Message.Source
	HeaderID       = "inbox-id"       // Message.ID
	HeaderSubject  = "inbox-subject"  // Message.Subject
	HeaderPosition = "inbox-position" // Message.Position
)

// Headers that begin with ours have a meaning to Posthaste, for example that a job is a copy that no replay stores
// again, and caller-service, in any spelling, names the service that asked for a job: a publisher must name no other.
// A message's header with such a name becomes a job's header with theirs prepended.
const ours, theirs = "posthaste-", "inbox-"

const (
	typeJSON  = "application/json"
	typeBytes = "application/octet-stream"

	maxKeyBytes = 512 // of a job's key and idempotency key
)

// job returns the request of a message's job. Its error is permanent.
func (b *BridgeConfig) job(m *Message) (outbox.Request, error) {
	options := b.Options
	options.IdempotencyKey = m.idempotencyKey()
	options.Headers = m.headers()
	if m.Key == "" {
		options.Key = outbox.KeyRules{} // a rule without a key is refused
	} else {
		options.Key.Name = short(text(m.Key))
		// Order by commits, which is the order of the messages: a batch is stored in its order, and by one process at a
		// time. Positions start over when a stream or topic is recreated, and differ between partitions.
		options.Key.Ordered = b.Ordered
	}
	return outbox.Encode(outbox.Raw{KindName: b.Kind, Payload: m.Body, ContentType: m.contentType()}, options)
}

func (m *Message) idempotencyKey() string { return short(text(m.Source + "/" + m.ID)) }

func (m *Message) headers() map[string]string {
	values := make(map[string]string, len(m.Headers))
	for _, h := range m.Headers {
		name, value := h.Name, h.Value
		for _, context := range []string{"traceparent", "tracestate"} {
			if strings.EqualFold(name, context) {
				name = context
			}
		}
		if len(name) >= len(ours) && strings.EqualFold(name[:len(ours)], ours) || name == engine.HeaderService ||
			engine.PosesAsService(name) {
			name = theirs + name
		}
		if before, ok := values[name]; ok {
			value = before + ", " + value
		}
		values[name] = value
	}
	all := make(map[string]string, len(values)+4)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		if !isText(value) {
			name, value = name+";base64", base64.StdEncoding.EncodeToString([]byte(value))
		}
		all[name] = value
	}
	all[HeaderSource], all[HeaderID], all[HeaderSubject] = text(m.Source), text(m.ID), text(m.Subject)
	all[HeaderPosition] = strconv.FormatInt(m.Position, 10)
	return all
}

// contentType returns JSON's type without its parameters, which jobs do not have. An empty body is not JSON.
func (m *Message) contentType() string {
	media, _, err := mime.ParseMediaType(m.ContentType)
	switch {
	case len(m.Body) == 0 && (m.ContentType == "" || media == typeJSON):
		return typeBytes
	case err == nil && media == typeJSON:
		return typeJSON
	case m.ContentType != "":
		return m.ContentType
	case json.Valid(m.Body) && utf8.Valid(m.Body):
		return typeJSON
	}
	return typeBytes
}

// text returns a value that a text column can store, in another notation for bytes that are not text.
func text(s string) string {
	if isText(s) {
		return s
	}
	return "base64:" + base64.StdEncoding.EncodeToString([]byte(s))
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func short(s string) string {
	if len(s) <= maxKeyBytes {
		return s
	}
	return hash(s)
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Undecodable is the kind, and also the error code, of the dead letter that a message becomes if no job can be made
// from it.
const (
	Undecodable     = "inbox:undecodable"
	undecodableCode = "undecodable_message"
)

// Letter is the payload of a job of the kind [Undecodable].
type Letter struct {
	Source      string            `json:"source"`
	ID          string            `json:"id"`
	Subject     string            `json:"subject"`
	Key         string            `json:"key,omitempty"`
	Position    int64             `json:"position"`
	ForKind     string            `json:"kind"` // the kind that the job would have had
	Reason      string            `json:"reason"`
	ContentType string            `json:"content_type,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"` // omitted if too large
	Size        int               `json:"size"`              // of the message's body
	Body        []byte            `json:"body"`              // its first 2 MiB
}

// Kind returns [Undecodable].
func (Letter) Kind() string { return Undecodable }

const (
	maxLetterBody    = 2 << 20
	maxLetterHeaders = 256 << 10
	maxReason        = 1000
)

// letter returns the dead letter of a message.
func (b *BridgeConfig) letter(m *Message, reason error) (sqlgen.StoreUndecodableParams, error) {
	l := Letter{
		Source: text(m.Source), ID: text(m.ID), Subject: text(m.Subject), Key: text(m.Key), Position: m.Position,
		ForKind: b.Kind,
		Reason:  reason.Error(), ContentType: text(m.ContentType), Size: len(m.Body),
		Body: m.Body[:min(len(m.Body), maxLetterBody)],
	}
	for _, field := range []*string{&l.ID, &l.Subject, &l.Key, &l.ContentType, &l.Reason} {
		*field = pgvalue.Text(*field, 4*maxReason)
	}
	size := 0
	for _, h := range m.Headers {
		size += len(h.Name) + len(h.Value)
	}
	if size <= maxLetterHeaders {
		l.Headers = m.headers()
	}
	payload, err := json.Marshal(l)
	if err != nil {
		return sqlgen.StoreUndecodableParams{}, fmt.Errorf("encode the dead letter: %w", err)
	}
	tenant := b.tenant()
	return sqlgen.StoreUndecodableParams{
		ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(tenant), Queue: b.queue(), Kind: Undecodable,
		Payload:   payload,
		ErrorCode: undecodableCode, ErrorMessage: pgvalue.ASCII(reason.Error(), maxReason),
		Fingerprint:    fingerprint.Of(Undecodable, undecodableCode, reason.Error()),
		IdempotencyKey: hash(m.Source + "/" + m.ID), // storable in any database
	}, nil
}

func (b *BridgeConfig) queue() string { return cmp.Or(b.Options.Queue, "default") }

func (b *BridgeConfig) tenant() outbox.ID {
	if b.Options.Tenant.IsZero() {
		return outbox.RootTenant
	}
	return b.Options.Tenant
}
