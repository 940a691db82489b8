package outbox

import (
	"bufio"
	"crypto/rand"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// ID identifies a job or a tenant. It is a UUID; those of jobs are of version 7 and sort by the time at which they were
// made. The zero ID identifies nothing. pgx and database/sql can pass an ID to a uuid column and scan one from it.
type ID [16]byte

// RootTenant owns the jobs whose Options name no tenant.
var RootTenant = ID(engine.RootTenant)

// NewID returns a new, globally unique id.
func NewID() ID { return newID(rand.Reader) }

// newID returns a UUID of version 7 (RFC 9562): 60 bits of time and 62 random ones.
func newID(random io.Reader) (id ID) {
	if _, err := io.ReadFull(random, id[8:]); err != nil {
		panic(noRandomness(err))
	}
	ms, fraction := newTime()
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16|0x7000|uint64(fraction))
	id[8] = 0x80 | id[8]&0x3f
	return id
}

// lastTime is the newest time that newTime has returned, the fraction in its last 12 bits.
var lastTime struct {
	sync.Mutex
	time int64
}

// newTime returns the time in milliseconds and steps of 256 nanoseconds. Each result is later than all before it: when
// ids are made faster than one per step, they run ahead of the clock.
func newTime() (ms, fraction int64) {
	lastTime.Lock()
	defer lastTime.Unlock()
	now := time.Now().UnixNano()
	lastTime.time = max(lastTime.time+1, now/1e6<<12|now%1e6>>8)
	return lastTime.time >> 12, lastTime.time & 0xfff
}

// noRandomness returns the message for a system whose source of randomness is broken.
func noRandomness(err error) string { return fmt.Sprintf("outbox: make an id: %v", err) }

// An idRun makes rising ids in runs that share the time of their first, because reading the clock and getting random
// bits is most of the cost of an id. After the time, each id has a counter of 8 bits (RFC 9562, 6.2, method 1) and 54
// random ones. The id that follows a run, whichever goroutine makes it, has a later time.
type idRun struct {
	random *bufio.Reader
	first  ID
	made   uint8 // in this run; 0 begins a new one
}

func newIDRun() *idRun { return &idRun{random: bufio.NewReader(rand.Reader)} }

func (r *idRun) next() ID {
	if r.made == 0 {
		r.first = newID(r.random)
	}
	id := r.first
	if _, err := io.ReadFull(r.random, id[9:]); err != nil {
		panic(noRandomness(err))
	}
	id[8] = 0x80 | r.made>>2 // the variant, and the counter's first bits
	id[9] = r.made<<6 | id[9]&0x3f
	r.made++
	return id
}

// ParseID parses the canonical form that String returns, with letters of either case.
func ParseID(s string) (ID, error) {
	if len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' {
		var id ID
		digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
		if _, err := hex.Decode(id[:], []byte(digits)); err == nil {
			return id, nil
		}
	}
	return ID{}, fmt.Errorf("parse id %q: want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab", s)
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the canonical form: 36 characters, lower case.
func (id ID) String() string {
	text := hex.AppendEncode(make([]byte, 0, 36), id[:4])
	for at := 4; at < 10; at += 2 {
		text = hex.AppendEncode(append(text, '-'), id[at:at+2])
	}
	return string(hex.AppendEncode(append(text, '-'), id[10:]))
}

// MarshalText encodes an ID as its canonical form, a string in JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses text as ParseID does.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// Value lets database/sql and pgx send an ID as a uuid.
func (id ID) Value() (driver.Value, error) { return id.String(), nil }

// Scan lets database/sql and pgx read a uuid into an ID; NULL becomes the zero ID.
func (id *ID) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*id = ID{}
		return nil
	case string:
		return id.UnmarshalText([]byte(v))
	case []byte:
		if len(v) == len(id) { // the raw 16 bytes rather than the text
			copy(id[:], v)
			return nil
		}
		return id.UnmarshalText(v)
	default:
		return fmt.Errorf("scan id: cannot read a %T", src)
	}
}
