package api

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// fromCursor returns the place that the cursor of a list names, and the zero place for "".
func fromCursor[T any](text string, read func(string) (T, error)) (place T, err error) {
	if text == "" {
		return place, nil
	}
	if place, err = read(text); err != nil {
		return place, badCursor(Fault{Parameter: "cursor"})
	}
	return place, nil
}

func badCursor(at Fault) error {
	at.Detail = "is not a cursor returned by this API"
	return invalidInput.because("", at)
}

// writeCursor returns a cursor in base64: a version, and a place.
func writeCursor(version byte, place ...[]byte) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{version}, bytes.Join(place, nil)...))
}

func number8(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// decodeCursor returns what follows the version of a cursor of the given length.
func decodeCursor(s string, version byte, size int) ([]byte, error) {
	b, err := openCursor(s, version)
	if err == nil && len(b) != size {
		err = errors.New("not of this size")
	}
	return b, err
}

// openCursor returns what follows the version of a cursor of any list. It accepts a single spelling: base64 alone
// ignores line ends.
func openCursor(s string, version byte) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 || b[0] != version || len(s) != base64.RawURLEncoding.EncodedLen(len(b)) {
		return nil, cmp.Or(err, errors.New("not of this version"))
	}
	return b[1:], nil
}

// A cursor of jobs or operations names the id from which on all were on this page or an earlier one.
const cursorVersion = 1

func makeCursor(id outbox.ID) string { return writeCursor(cursorVersion, id[:]) }

func readCursor(s string) (outbox.ID, error) {
	b, err := decodeCursor(s, cursorVersion, 16)
	if err != nil {
		return outbox.ID{}, err
	}
	id := outbox.ID(b)
	if id.IsZero() {
		return id, errors.New("names no job")
	}
	return id, nil
}

// A cursor with jobs that are still to be skipped, because of offset, has their number after the id: the time of a page
// may be over before they are skipped.
const skipCursorVersion = 2

func makeJobsCursor(page operator.JobPage) string {
	if page.Skip == 0 {
		return makeCursor(page.Next)
	}
	return writeCursor(skipCursorVersion, page.Next[:], binary.BigEndian.AppendUint16(nil, uint16(page.Skip)))
}

func readJobsCursor(s string) (before outbox.ID, skip int, err error) {
	b, err := decodeCursor(s, skipCursorVersion, 18)
	if err != nil {
		before, err = readCursor(s)
		return before, 0, err
	}
	before, skip = outbox.ID(b[:16]), int(binary.BigEndian.Uint16(b[16:]))
	if before.IsZero() || skip == 0 || skip > operator.MaxSkip {
		return before, skip, errors.New("names no job")
	}
	return before, skip, nil
}

// A cursor of an act on dead letters names the last examined job and the bound of the act.
const actCursorVersion = 1

func makeActCursor(last outbox.ID, until time.Time) string {
	return writeCursor(actCursorVersion, last[:], number8(until.UnixMicro()))
}

func readActCursor(s string) (outbox.ID, time.Time, error) {
	b, err := decodeCursor(s, actCursorVersion, 24)
	if err != nil {
		return outbox.ID{}, time.Time{}, err
	}
	last, until := outbox.ID(b[:16]), time.UnixMicro(int64(binary.BigEndian.Uint64(b[16:])))
	if last.IsZero() || until.Year() < 2000 || until.Year() > 9999 {
		return last, until, errors.New("names no job")
	}
	return last, until, nil
}

// A cursor of the audit names the id below which the next page begins.
const auditCursorVersion = 1

func makeAuditCursor(id int64) string { return writeCursor(auditCursorVersion, number8(id)) }

func readAuditCursor(s string) (int64, error) {
	b, err := decodeCursor(s, auditCursorVersion, 8)
	if err != nil {
		return 0, err
	}
	id := int64(binary.BigEndian.Uint64(b))
	if id <= 0 {
		return 0, errors.New("names no act")
	}
	return id, nil
}

// A cursor of a job's log names a line. Clients do not see epochs.
const logCursorVersion = 1

func makeLogCursor(p operator.LogPosition) string {
	return writeCursor(logCursorVersion, number8(p.Epoch), number8(p.Line))
}

func readLogCursor(s string) (operator.LogPosition, error) {
	b, err := decodeCursor(s, logCursorVersion, 16)
	if err != nil {
		return operator.LogPosition{}, err
	}
	p := operator.LogPosition{Epoch: int64(binary.BigEndian.Uint64(b)), Line: int64(binary.BigEndian.Uint64(b[8:]))}
	if p.Epoch < 0 || p.Line < 1 {
		return operator.LogPosition{}, errors.New("names no line")
	}
	return p, nil
}

// A cursor of held messages names the position and the job of the last one of a page.
const heldCursorVersion = 1

func makeHeldCursor(p operator.HeldPlace) string {
	return writeCursor(heldCursorVersion, number8(p.Position), p.Job[:])
}

func readHeldCursor(s string) (p operator.HeldPlace, err error) {
	b, err := decodeCursor(s, heldCursorVersion, 24)
	if err != nil {
		return p, err
	}
	p = operator.HeldPlace{Position: int64(binary.BigEndian.Uint64(b)), Job: outbox.ID(b[8:])}
	if p.Position < 0 {
		return p, errors.New("names no position")
	}
	return p, nil
}

// A cursor of keys names the last key of a page: when the first of its blocked jobs was due, in microseconds, its
// tenant, the length of its queue's name, that name and the key.
const (
	keyCursorVersion = 1
	keyCursorHead    = 8 + 16 + 1
	notBlocked       = math.MaxInt64
)

func makeKeyCursor(p operator.KeyPlace) string {
	since := int64(notBlocked)
	if !p.BlockedSince.IsZero() {
		since = p.BlockedSince.UnixMicro()
	}
	return writeCursor(keyCursorVersion, number8(since), p.Tenant[:], []byte{byte(len(p.Queue))}, []byte(p.Queue),
		[]byte(p.Key))
}

func readKeyCursor(s string) (p operator.KeyPlace, err error) {
	b, err := openCursor(s, keyCursorVersion)
	if err != nil {
		return p, err
	}
	if len(b) < keyCursorHead || len(b) <= keyCursorHead+int(b[keyCursorHead-1]) {
		return p, errors.New("names no key")
	}
	since, queueEnds := int64(binary.BigEndian.Uint64(b)), keyCursorHead+int(b[keyCursorHead-1])
	p.Tenant, p.Queue, p.Key = outbox.ID(b[8:24]), string(b[keyCursorHead:queueEnds]), string(b[queueEnds:])
	if since != notBlocked {
		p.BlockedSince = time.UnixMicro(since)
		if year := p.BlockedSince.Year(); p.BlockedSince.IsZero() || year < 1 || year > 9999 {
			return p, errors.New("is of no time")
		}
	}
	if strings.ContainsRune(p.Queue+p.Key, 0) || !utf8.ValidString(p.Queue) || !utf8.ValidString(p.Key) {
		return p, errors.New("names no key")
	}
	return p, nil
}

// A cursor of schedules names the last one of a page: its tenant and its name.
const scheduleCursorVersion = 1

type schedulePlace struct {
	name   string
	tenant outbox.ID
}

func makeScheduleCursor(p schedulePlace) string {
	return writeCursor(scheduleCursorVersion, p.tenant[:], []byte(p.name))
}

func readScheduleCursor(s string) (p schedulePlace, err error) {
	b, err := openCursor(s, scheduleCursorVersion)
	if err != nil {
		return p, err
	}
	if len(b) <= 16 {
		return p, errors.New("names no schedule")
	}
	p = schedulePlace{string(b[16:]), outbox.ID(b[:16])}
	if strings.ContainsRune(p.name, 0) || !utf8.ValidString(p.name) {
		return p, errors.New("names no schedule")
	}
	return p, nil
}
