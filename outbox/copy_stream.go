package outbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// copyMessage is how many bytes are encoded at a time: the size of the messages that pgconn sends.
const copyMessage = 64<<10 - 5

// copyStream encodes the rows of one COPY in Postgres's binary format, for pgconn to read. It is faster than pgx, which
// looks up the encoding of each value of each row through an interface and sends them all through a pipe
// (docs/benchmarks.md). Columns that few jobs set are encoded by pgx here, too.
type copyStream struct {
	*copySource
	reading sync.Mutex
	over    bool // pgconn has returned

	types *pgtype.Map
	bytes []byte
	read  int  // how many of bytes pgconn has read
	begun bool // the header has been read
	ended bool
}

const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00" // no flags, no extension

// pgxConn returns the connection of a transaction if the transaction's type is pgx's own, or else nil: the CopyFrom of
// another type may do more.
func pgxConn(db copier) *pgx.Conn {
	switch tx := db.(type) {
	case *savepoint:
		if inner, ok := tx.Tx.(copier); ok {
			return pgxConn(inner)
		}
	case *pgxpool.Tx:
		return tx.Conn()
	case pgx.Tx:
		if t := reflect.TypeOf(tx); t.Kind() == reflect.Pointer &&
			t.Elem().PkgPath() == reflect.TypeFor[pgx.Conn]().PkgPath() {
			return tx.Conn()
		}
	}
	return nil
}

// copyTo sends one COPY and calls pgx's tracer as pgx does.
func (s *copySource) copyTo(ctx context.Context, conn *pgx.Conn, names []string) error {
	stream := &copyStream{
		copySource: s, types: conn.TypeMap(),
		bytes: append(make([]byte, 0, copyMessage), copyHeader...),
	}
	tracer, traced := conn.Config().Tracer.(pgx.CopyFromTracer)
	if traced {
		ctx = tracer.TraceCopyFromStart(ctx, conn, pgx.TraceCopyFromStartData{TableName: jobsTable, ColumnNames: names})
	}
	tag, err := stream.copy(ctx, conn.PgConn(), `COPY outbox.jobs (`+strings.Join(names, ", ")+`) FROM STDIN BINARY`)
	if traced {
		tracer.TraceCopyFromEnd(ctx, conn, pgx.TraceCopyFromEndData{CommandTag: tag, Err: err})
	}
	return err
}

// copy sends the stream and returns once no goroutine reads it any more. When the connection breaks, pgconn does not
// wait for its reading goroutine, which would otherwise go on to read rows that belong to the caller again, or wait for
// rows that are never made.
func (s *copyStream) copy(ctx context.Context, conn *pgconn.PgConn, sql string) (pgconn.CommandTag, error) {
	tag, err := conn.CopyFrom(ctx, s, sql)
	s.reading.Lock() // rows are made until copyTo returns, so a Read that waits for them finishes
	defer s.reading.Unlock()
	s.over = true
	return tag, err
}

// Read returns the bytes that pgconn sends.
func (s *copyStream) Read(p []byte) (n int, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	switch {
	case s.over:
		return 0, io.ErrClosedPipe
	case !s.begun:
		s.begun = true
		err = s.encode()
	case s.read < len(s.bytes):
	case s.ended:
		return 0, io.EOF
	default:
		s.bytes, s.read = s.bytes[:0], 0
		err = s.encode()
	}
	if err != nil {
		return 0, err
	}
	n = copy(p, s.bytes[s.read:])
	s.read += n
	return n, nil
}

// encode adds rows until another one of the last row's size would exceed a message, or until there are no more.
func (s *copyStream) encode() (err error) {
	for took := 0; len(s.bytes)+took <= copyMessage; {
		before := len(s.bytes)
		if !s.Next() {
			s.bytes, s.ended = append(s.bytes, 0xff, 0xff), true
			return s.err
		}
		r := &s.rows[s.next-1]
		s.bytes = binary.BigEndian.AppendUint16(s.bytes, uint16(len(s.columns)))
		for i := range s.columns {
			if c := &s.columns[i]; c.append != nil {
				s.bytes = c.append(s.bytes, r)
			} else if s.bytes, err = appendAny(s.bytes, s.types, c.oid, c.value(r)); err != nil {
				return fmt.Errorf("encode %s: %w", c.name, err)
			}
		}
		took = len(s.bytes) - before
	}
	return nil
}

func appendBytes[T ~string | ~[]byte](to []byte, value T) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(value))), value...)
}

func appendInt16(to []byte, value int16) []byte {
	return binary.BigEndian.AppendUint16(append(to, 0, 0, 0, 2), uint16(value))
}

func appendInt32(to []byte, value int32) []byte {
	return binary.BigEndian.AppendUint32(append(to, 0, 0, 0, 4), uint32(value))
}

var null = []byte{0xff, 0xff, 0xff, 0xff} // a length of -1

// postgresEpoch is the zero of a timestamptz, in seconds.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

func appendTime(to []byte, value pgtype.Timestamptz) []byte {
	if !value.Valid {
		return append(to, null...)
	}
	micros := (value.Time.Unix()-postgresEpoch)*1_000_000 + int64(value.Time.Nanosecond()/1000)
	return binary.BigEndian.AppendUint64(append(to, 0, 0, 0, 8), uint64(micros))
}

func appendAny(to []byte, types *pgtype.Map, oid uint32, value any) ([]byte, error) {
	at := len(to)
	to = append(to, null...)
	all, err := types.Encode(oid, pgtype.BinaryFormatCode, value, to)
	if err != nil || all == nil { // nil is NULL
		return to, err
	}
	binary.BigEndian.PutUint32(all[at:], uint32(len(all)-at-4))
	return all, nil
}
