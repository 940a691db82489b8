package protect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
)

// ClaimCheckType is the content type of references stored by a [ClaimCheck].
const ClaimCheckType = SealedPrefix + "claim-check+json"

// A Store keeps contents by name: a bucket, a shared folder ([Dir]). Names consist of hexadecimal digits, hyphens and
// slashes. A Store must be safe for concurrent use.
//
// Nothing is ever deleted: content is stored before the transaction commits, so content left by a rollback cannot be
// distinguished from content about to be committed. Give the store a rule that deletes whatever is older than the
// longest retention of jobs.
type Store interface {
	Put(ctx context.Context, name string, content []byte) error // may be repeated with the same content
	Get(ctx context.Context, name string) ([]byte, error)
}

// A ClaimCheck puts large content into a store, and a reference with the content's SHA-256 into the job.
type ClaimCheck struct {
	Store    Store
	Above    int              // up to this many bytes stay in the database; 0 means 64 KiB
	MaxBytes int              // largest content of a job; 0 means 64 MiB
	Inner    outbox.Protector // seals first and opens last, for example a Keyring; nil means none
}

// TooLargeError reports that content is larger than a [ClaimCheck] accepts.
type TooLargeError struct{ Bytes, MaxBytes int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("content is %d bytes, want at most %d", e.Bytes, e.MaxBytes)
}

type reference struct {
	Name   string `json:"name"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	Type   string `json:"type"`
}

func (c *ClaimCheck) validate() error {
	switch {
	case c.Store == nil:
		return invalid("ClaimCheck.Store", "is nil")
	case c.Above < 0:
		return invalid("ClaimCheck.Above", "is %d, want more than 0, or 0 for 64 KiB", c.Above)
	case c.MaxBytes < 0:
		return invalid("ClaimCheck.MaxBytes", "is %d, want more than 0, or 0 for 64 MiB", c.MaxBytes)
	}
	return nil
}

// Seal stores large content. It returns a [*TooLargeError] for content beyond MaxBytes, or the store's error. Whatever
// the size, it returns an [*outbox.InvalidError] if there is no Store or a limit is negative.
func (c *ClaimCheck) Seal(ctx context.Context, of outbox.Part, content outbox.Content) (outbox.Content, error) {
	if err := c.validate(); err != nil {
		return outbox.Content{}, err
	}
	above, limit := c.Above, c.MaxBytes
	if above == 0 {
		above = 64 << 10
	}
	if limit == 0 {
		limit = 64 << 20
	}
	if len(content.Bytes) > limit {
		return outbox.Content{}, &TooLargeError{len(content.Bytes), limit}
	}
	if c.Inner != nil {
		var err error
		if content, err = c.Inner.Seal(ctx, of, content); err != nil {
			return outbox.Content{}, err
		}
	}
	if len(content.Bytes) <= above {
		return content, nil
	}
	sum := sha256.Sum256(content.Bytes)
	r := reference{
		Name: place(of) + hex.EncodeToString(sum[:8]), Bytes: len(content.Bytes),
		SHA256: hex.EncodeToString(sum[:]), Type: content.Type,
	}
	if err := c.Store.Put(ctx, r.Name, content.Bytes); err != nil {
		return outbox.Content{}, fmt.Errorf("claim check: store %s: %w", r.Name, err)
	}
	text, err := json.Marshal(r)
	return outbox.Content{Type: ClaimCheckType, Bytes: text}, err
}

// place returns the prefix of the names that belong to a part. A reference copied from another job has another prefix
// and is refused.
func place(of outbox.Part) string {
	return fmt.Sprintf("%s/%s/%s-", of.Tenant, of.Job, of.Column)
}

// Open fetches the content that Seal stored and compares it with the reference in the job. If they differ, the error
// wraps [ErrUnreadable].
func (c *ClaimCheck) Open(ctx context.Context, of outbox.Part, content outbox.Content) (outbox.Content, error) {
	if content.Type == ClaimCheckType {
		var err error
		if content, err = c.fetch(ctx, of, content.Bytes); err != nil {
			return outbox.Content{}, fmt.Errorf("claim check: %w", err)
		}
	}
	if c.Inner == nil {
		return content, nil
	}
	return c.Inner.Open(ctx, of, content)
}

func (c *ClaimCheck) fetch(ctx context.Context, of outbox.Part, text []byte) (outbox.Content, error) {
	var r reference
	if err := json.Unmarshal(text, &r); err != nil {
		return outbox.Content{}, fmt.Errorf("%w: the reference is no JSON: %w", ErrUnreadable, err)
	}
	if c.Store == nil {
		return outbox.Content{}, invalid("ClaimCheck.Store", "is nil")
	}
	if len(r.SHA256) != 2*sha256.Size || r.Name != place(of)+r.SHA256[:16] {
		return outbox.Content{}, fmt.Errorf("%w: %q is not a name of the %s of this job", ErrUnreadable, r.Name,
			of.Column)
	}
	found, err := c.Store.Get(ctx, r.Name)
	if err != nil {
		return outbox.Content{}, fmt.Errorf("fetch %s: %w", r.Name, err)
	}
	if sum := sha256.Sum256(found); hex.EncodeToString(sum[:]) != r.SHA256 {
		return outbox.Content{}, fmt.Errorf("%w: %s has changed since it was stored", ErrUnreadable, r.Name)
	}
	return outbox.Content{Type: r.Type, Bytes: found}, nil
}
