package outbox

import (
	"bytes"
	"context"
	"fmt"
	"strings"
)

// Protector keeps what a job carries from whoever can read the database, or the
// database from what is too large for it: package protect has two. Give it to
// [Options] as Protect when you enqueue, to the dispatcher's mux by
// dispatcher.Opens, and to await.Config where results are waited for. It has to be
// safe for concurrent use.
type Protector interface {
	// Seal returns what is to be stored instead of plain. Content that it leaves
	// alone keeps its type; content that it changes gets a type that begins with
	// [SealedTypes].
	Seal(ctx context.Context, of Part, plain Content) (Content, error)
	// Open undoes Seal for the same part, and fails for any other.
	Open(ctx context.Context, of Part, sealed Content) (Content, error)
}

// SealedTypes is how the content type of what a [Protector] made begins.
const SealedTypes = "application/vnd.posthaste."

// Part is what a content belongs to.
type Part struct {
	Tenant ID
	Job    ID
	Column string // "payload" or "result"
}

// Content is bytes and what they are.
type Content struct {
	Type  string // like "application/json"
	Bytes []byte
}

// sealed reports whether a content was made by a protector.
func (c Content) sealed() bool { return strings.HasPrefix(c.Type, SealedTypes) }

// seal has p, which may be nil, seal the payload of a job.
func seal(ctx context.Context, p Protector, of Part, plain Content) (Content, error) {
	sealed := plain
	if p != nil {
		var err error
		if sealed, err = p.Seal(ctx, of, plain); err != nil {
			return Content{}, fmt.Errorf("Options.Protect: %w", err)
		}
	}
	if n := len(sealed.Bytes); n > MaxPayloadBytes {
		return Content{}, invalid("Args", "are %d bytes, want at most %d; store large data elsewhere and enqueue a reference", n, MaxPayloadBytes)
	}
	return sealed, nil
}

// Open has p open the payload, if a protector sealed it. From then on the result
// of the job is sealed by p as well. It is called by dispatcher.Opens.
func (c *Claimed) Open(ctx context.Context, p Protector) error {
	content := Content{c.ContentType, c.Payload}
	if !content.sealed() {
		return nil
	}
	plain, err := p.Open(ctx, c.part("payload"), content)
	if err != nil {
		return fmt.Errorf("open the payload of job %s: %w", c.ID, err)
	}
	c.ContentType, c.Payload, c.protector = plain.Type, plain.Bytes, p
	return nil
}

// SealResult has the protector that opened the payload, if one did, seal Result. What
// the protector leaves alone stays as it is, for everybody to read.
// Complete calls it, and dispatcher.Opens for handlers that return.
func (c *Claimed) SealResult(ctx context.Context) error {
	if c.protector == nil || len(c.Result) == 0 || bytes.HasPrefix(c.Result, []byte(frameMagic)) {
		return nil
	}
	sealed, err := c.protector.Seal(ctx, c.part("result"), Content{contentJSON, c.Result})
	if err != nil {
		return fmt.Errorf("seal the result of job %s: %w", c.ID, err)
	}
	if c.Result = sealed.Bytes; sealed.sealed() {
		c.Result = frame(sealed)
	}
	return nil
}

// frameMagic begins a stored result that a protector sealed: results have no
// column for their type. No JSON begins with it.
const frameMagic = "\x00ph\x02"

func frame(c Content) []byte {
	framed := append([]byte(frameMagic), byte(len(c.Type)))
	return append(append(framed, c.Type...), c.Bytes...)
}

// unframe is what frame was given, without a type if the frame is cut off.
func unframe(stored []byte) (c Content, framed bool) {
	rest, framed := bytes.CutPrefix(stored, []byte(frameMagic))
	if !framed || len(rest) == 0 || len(rest) < 1+int(rest[0]) {
		return Content{}, framed
	}
	n := 1 + int(rest[0])
	return Content{string(rest[1:n]), rest[n:]}, true
}

// SealedResult is the content type that a protector gave the stored result of a job
// when it sealed it, which begins with [SealedTypes]; "" if none did.
func SealedResult(stored []byte) (contentType string) {
	c, _ := unframe(stored)
	return c.Type
}

// OpenResult has p open the stored result of a job. One that was not sealed comes
// back as it is; a [*SealedError] is that p does not know this kind of seal.
func OpenResult(ctx context.Context, p Protector, tenant, job ID, stored []byte) ([]byte, error) {
	sealed, framed := unframe(stored)
	if !framed {
		return stored, nil
	}
	if sealed.Type == "" {
		return nil, fmt.Errorf("open the result of job %s: it is cut off", job)
	}
	plain, err := p.Open(ctx, Part{tenant, job, "result"}, sealed)
	if err != nil {
		return nil, fmt.Errorf("open the result of job %s: %w", job, err)
	}
	if plain.sealed() { // by another: to decode it as the handler's would be worse than to fail
		return nil, fmt.Errorf("the protector leaves it as it is: %w", &SealedError{job, plain.Type})
	}
	return plain.Bytes, nil
}

func (c *Claimed) part(column string) Part { return Part{c.Tenant, c.ID, column} }
