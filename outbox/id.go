package outbox

import (
	"bufio"
	"crypto/rand"
	"database/sql/driver"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// ID names a job or a tenant: a UUID, for jobs of version 7, so that ids sort by
// the time of their making. The zero ID names nothing. An ID can be passed to and
// scanned from a uuid column by pgx and by database/sql.
type ID [16]byte

// RootTenant owns the jobs whose Options name no tenant.
var RootTenant = ID{15: 1}

// NewID makes an id that no other call, here or elsewhere, makes again.
func NewID() ID { return newID(rand.Reader) }

func newID(random io.Reader) ID {
	id, err := uuid.NewV7FromReader(random)
	if err != nil {
		panic(noRandomness(err))
	}
	return ID(id)
}

// noRandomness is the system's source of it being broken.
func noRandomness(err error) string { return fmt.Sprintf("outbox: make an id: %v", err) }

// idRun makes ids that rise, a run of which share the time of the first: looking at the
// clock and asking for randomness is most of what an id costs. Behind the time they have
// a counter of 8 bits (RFC 9562, 6.2, method 1) and 54 random ones; the id that follows
// a run, of whoever makes it in this process, has a later time.
type idRun struct {
	random *bufio.Reader
	first  ID
	made   uint8 // of the run; 0 begins another
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

// ParseID reads the canonical form, as String writes it.
func ParseID(s string) (ID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return ID{}, fmt.Errorf("parse id %q: want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab", s)
	}
	return ID(id), nil
}

// IsZero reports whether id names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// String is the canonical form: 36 characters, lower case.
func (id ID) String() string { return uuid.UUID(id).String() }

// MarshalText makes an ID a string in JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// UUIDValue lets pgx send an ID as a uuid.
func (id ID) UUIDValue() (pgtype.UUID, error) { return id.pg(), nil }

// ScanUUID lets pgx read a uuid into an ID; NULL becomes the zero ID.
func (id *ID) ScanUUID(v pgtype.UUID) error {
	*id = v.Bytes
	return nil
}

// Value lets database/sql send an ID.
func (id ID) Value() (driver.Value, error) { return id.String(), nil }

// Scan lets database/sql read an ID; NULL becomes the zero ID.
func (id *ID) Scan(src any) error {
	var v uuid.UUID
	if err := v.Scan(src); err != nil {
		return fmt.Errorf("scan id: %w", err)
	}
	*id = ID(v)
	return nil
}

func (id ID) pg() pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
