package probe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// EchoKind is the kind of jobs whose handler reports what it received: its first attempt fails with the payload as the
// error's message, the next one returns the payload as its result.
const EchoKind = "verify.echo"

func (h *handlers) echo(_ context.Context, job *outbox.Claimed) error {
	entry := ledger.Entry{
		Job: job.ID, Epoch: job.Epoch, Attempt: job.Attempt,
		Key: Digest(job.Payload, job.ContentType, job.Key, job.Headers()),
	}
	entry.Event = ledger.Start
	h.book.Write(entry)
	entry.Event = ledger.End
	var err error
	if job.Attempt == 1 {
		err = errors.New(string(job.Payload))
		entry.Error = class(err)
	}
	if len(job.Payload) <= engine.MaxResultBytes {
		job.Result = job.Payload
	}
	h.book.Write(entry)
	return err
}

// Digest returns a hash of everything that a producer can pass to a handler.
func Digest(payload []byte, contentType, key string, headers map[string]string) string {
	said := []string{
		strconv.QuoteToASCII(string(payload)), strconv.QuoteToASCII(contentType),
		strconv.QuoteToASCII(key),
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		said = append(said, strconv.QuoteToASCII(name), strconv.QuoteToASCII(headers[name]))
	}
	sum := sha256.Sum256([]byte(strings.Join(said, " ")))
	return hex.EncodeToString(sum[:])
}
