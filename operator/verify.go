package operator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// ErrNoAuditChain reports that none of the audit's chain is visible: the login sees one tenant only, or somebody has
// emptied the chain.
var ErrNoAuditChain = errors.New(
	"no chain of the audit is seen: connect as the owner or a member of outbox_worker, or set app.tenant_id to *; if you did, somebody has emptied outbox.audit_chain")

// AuditHead is a link of the audit's chain: its number and its hash, which covers everything that was recorded before
// it. Store it where those who can change the database cannot write: a later check against it finds out whether all of
// that still exists, see [Operator.VerifyAudit].
type AuditHead struct {
	Seq  int64
	Hash [sha256.Size]byte
}

// String returns the head in the form in which people write it down: 1204:5f1c….
func (h AuditHead) String() string { return fmt.Sprintf("%d:%x", h.Seq, h.Hash) }

// ParseAuditHead parses the result of [AuditHead.String].
func ParseAuditHead(text string) (h AuditHead, err error) {
	seq, hash, _ := strings.Cut(text, ":")
	if h.Seq, err = strconv.ParseInt(seq, 10, 64); err == nil {
		var n int
		n, err = hex.Decode(h.Hash[:], []byte(hash[:min(len(hash), hex.EncodedLen(len(h.Hash)))]))
		if len(hash) != hex.EncodedLen(len(h.Hash)) || n != len(h.Hash) {
			err = errors.New("malformed")
		}
	}
	if err != nil || h.Seq < 0 {
		return AuditHead{}, invalid.Field("AuditHead", "is %q, want a number, a colon and 64 hex digits", text)
	}
	return h, nil
}

// AuditCheck is the result of [Operator.VerifyAudit].
type AuditCheck struct {
	Acts    int64     // unchanged since they were recorded
	Trimmed int64     // links before the first one that is kept
	Head    AuditHead // store it elsewhere
	Broken  int64     // places at which the audit differs from what was recorded
	Breaks  []AuditBreak
}

// AuditBreak is a place at which the audit differs from what was recorded. At most a hundred are returned.
type AuditBreak struct {
	Seq     int64 // of the link; 0 if there is none
	AuditID int64 // of the act; 0 if it is not known
	What    string
}

func (b AuditBreak) String() string {
	var at []string
	if b.Seq != 0 {
		at = append(at, fmt.Sprintf("link %d", b.Seq))
	}
	if b.AuditID != 0 {
		at = append(at, fmt.Sprintf("act %d", b.AuditID))
	}
	return strings.Join(append(at, b.What), ": ")
}

const (
	auditPage = 500 // links in a statement, each with its act
	idPage    = 10_000
	maxBreaks = 100
)

// VerifyAudit reads the whole audit and its chain, and finds every act that was changed, removed, inserted or moved
// since it was recorded, unless all later links were recomputed as well, or the end was cut off. The head noted by an
// earlier check finds those, too; the zero head means none.
//
// The hashes are computed here, so that no function in the database must be trusted. VerifyAudit reads a page at a
// time, and holds no snapshot: acts and reapers go on meanwhile.
func (o *Operator) VerifyAudit(ctx context.Context, noted AuditHead) (AuditCheck, error) {
	w := chainReader{noted: noted}
	if err := o.readChain(ctx, &w); err != nil {
		return w.check, fmt.Errorf("verify the audit: %w", err)
	}
	if err := o.findUnchained(ctx, &w); err != nil {
		return w.check, fmt.Errorf("verify the audit: %w", err)
	}
	return w.check, nil
}

func (o *Operator) readChain(ctx context.Context, w *chainReader) error {
	for after := int64(math.MinInt64); ; after = w.check.Head.Seq {
		bound, cancel := bounded(ctx)
		links, err := o.db.ReadAuditChain(bound, after, auditPage)
		cancel()
		if err != nil {
			return err
		}
		for _, link := range links {
			w.step(link)
		}
		if len(links) < auditPage {
			break
		}
	}
	if !w.begun {
		return ErrNoAuditChain
	}
	w.end()
	return nil
}

// findUnchained looks for acts without a link.
func (o *Operator) findUnchained(ctx context.Context, w *chainReader) error {
	for after := int64(math.MinInt64); ; {
		bound, cancel := bounded(ctx)
		found, err := o.db.FindUnchainedAudit(bound, after, idPage)
		cancel()
		if err != nil {
			return err
		}
		for _, id := range found.Unchained {
			w.broken(0, id, "the act has no link: it was inserted later")
		}
		w.check.Broken += found.Missing - int64(len(found.Unchained))
		if found.LookedAt < idPage {
			return nil
		}
		after = found.Last
	}
}

// A chainReader reads the chain, link by link.
type chainReader struct {
	noted AuditHead
	found bool // the noted link was found
	begun bool
	check AuditCheck // its head is the link before the next one
}

func (w *chainReader) broken(seq, id int64, what string, args ...any) {
	w.check.Broken++
	if len(w.check.Breaks) < maxBreaks {
		w.check.Breaks = append(w.check.Breaks, AuditBreak{seq, id, fmt.Sprintf(what, args...)})
	}
}

func (w *chainReader) step(link sqlgen.ReadAuditChainRow) {
	before := w.check.Head
	switch {
	case link.IsAnchor:
		// This is where the chain begins, or begins now because a reaper has trimmed past this point since the last
		// page.
		w.check.Trimmed = link.Seq
		if link.Seq == 0 && !bytes.Equal(link.Hash, make([]byte, sha256.Size)) {
			w.broken(0, 0, "the beginning of the chain was changed")
		}
	case !w.begun:
		w.broken(link.Seq, link.AuditID, "the links before it are gone")
	case link.Seq != before.Seq+1:
		w.broken(before.Seq+1, 0, "the links from here to %d are gone", link.Seq-1)
	case !link.HasAct:
		w.broken(link.Seq, link.AuditID, "the act is gone")
	case !follows(link, before):
		w.broken(link.Seq, link.AuditID, "the act or its link was changed")
	default:
		w.check.Acts++
	}
	w.begun = true
	w.check.Head = AuditHead{Seq: link.Seq}
	copy(w.check.Head.Hash[:], link.Hash)
	if link.Seq == w.noted.Seq && w.noted != (AuditHead{}) {
		w.found = true
		if w.check.Head != w.noted {
			w.broken(link.Seq, link.AuditID,
				"the link is not the one that was noted: something until here was changed, and the chain made anew")
		}
	}
}

// follows reports whether a link is the hash of the previous one and its act.
func follows(link sqlgen.ReadAuditChainRow, before AuditHead) bool {
	h := sha256.New()
	h.Write(before.Hash[:])
	h.Write([]byte(link.Entry))
	return bytes.Equal(h.Sum(nil), link.Hash)
}

// end adds what only the comparison with the noted head shows.
func (w *chainReader) end() {
	switch {
	case w.found || w.noted == AuditHead{}:
	case w.noted.Seq > w.check.Head.Seq:
		w.broken(w.check.Head.Seq+1, 0, "the links from here to the one that was noted, %d, are gone", w.noted.Seq)
	default:
		w.broken(w.noted.Seq, 0,
			"the link that was noted is trimmed, so nothing can be said: check, and note the head, more often than acts are trimmed")
	}
}
