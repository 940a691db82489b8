package outboxtest

import (
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows holds rows that have been read, so that others can use the connection while a handler looks at them.
type rows struct {
	fields []pgconn.FieldDescription
	values [][][]byte
	tag    pgconn.CommandTag
	types  *pgtype.Map
	at     int // the row that Next has reached, from 1
	err    error
}

var _ pgx.Rows = (*rows)(nil)

// read reads all rows of an answer.
func (r *rows) read(from pgx.Rows, err error) error {
	if from == nil {
		return err
	}
	defer from.Close()
	r.types = from.TypeMap()
	for from.Next() {
		raw := from.RawValues()
		kept := make([][]byte, len(raw))
		for i, value := range raw {
			kept[i] = slices.Clone(value)
		}
		r.values = append(r.values, kept)
	}
	r.fields = slices.Clone(from.FieldDescriptions())
	from.Close()
	r.tag = from.CommandTag()
	return from.Err()
}

func (r *rows) Close()                                       { r.at = len(r.values) + 1 }
func (r *rows) Err() error                                   { return r.err }
func (r *rows) CommandTag() pgconn.CommandTag                { return r.tag }
func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return r.fields }
func (r *rows) Conn() *pgx.Conn                              { return nil }
func (r *rows) TypeMap() *pgtype.Map                         { return r.types }

func (r *rows) Next() bool {
	if r.err != nil {
		return false
	}
	r.at = min(r.at+1, len(r.values)+1)
	return r.at <= len(r.values)
}

func (r *rows) RawValues() [][]byte {
	if r.at < 1 || r.at > len(r.values) {
		return nil
	}
	return r.values[r.at-1]
}

// Scan fails in every call after one that has failed, like the driver's.
func (r *rows) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	if len(dest) == 1 {
		if whole, ok := dest[0].(pgx.RowScanner); ok {
			if r.err = whole.ScanRow(r); r.err != nil {
				r.Close()
			}
			return r.err
		}
	}
	if r.err = pgx.ScanRow(r.types, r.fields, r.RawValues(), dest...); r.err != nil {
		r.Close()
	}
	return r.err
}

func (r *rows) Values() ([]any, error) {
	raw := r.RawValues()
	values := make([]any, len(raw))
	for i, value := range raw {
		field := r.fields[i]
		switch t, known := r.types.TypeForOID(field.DataTypeOID); {
		case value == nil:
		case known:
			decoded, err := t.Codec.DecodeValue(r.types, field.DataTypeOID, field.Format, value)
			if err != nil {
				return nil, fmt.Errorf("decode column %s: %w", field.Name, err)
			}
			values[i] = decoded
		case field.Format == pgx.TextFormatCode:
			values[i] = string(value)
		default:
			values[i] = value
		}
	}
	return values, nil
}

// row is the first row of rows.
type row struct{ rows pgx.Rows }

func (r row) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	return r.rows.Scan(dest...)
}

// batchResults holds the answers to a batch, all of them read.
type batchResults struct {
	batch   *pgx.Batch
	answers []*rows
	at      int
	err     error
	closed  bool
}

var _ pgx.BatchResults = (*batchResults)(nil)

func (b *batchResults) read(from pgx.BatchResults, batch *pgx.Batch) error {
	b.batch = batch
	for range batch.QueuedQueries {
		answer := &rows{}
		answer.err = answer.read(from.Query())
		b.answers = append(b.answers, answer)
	}
	var first error
	for _, answer := range b.answers {
		if first == nil {
			first = answer.err
		}
	}
	for _, q := range batch.QueuedQueries { // or the driver's Close would call them again
		fn := q.Fn
		q.Fn = nil
		defer func() { q.Fn = fn }()
	}
	if err := from.Close(); first == nil {
		first = err
	}
	return first
}

func (b *batchResults) next() *rows {
	if b.at >= len(b.answers) {
		err := b.err
		if err == nil {
			err = fmt.Errorf("outboxtest: the batch has no result %d", b.at+1)
		}
		return &rows{err: err}
	}
	b.at++
	return b.answers[b.at-1]
}

func (b *batchResults) Exec() (pgconn.CommandTag, error) {
	answer := b.next()
	return answer.tag, answer.err
}

func (b *batchResults) Query() (pgx.Rows, error) {
	answer := b.next()
	return answer, answer.err
}

func (b *batchResults) QueryRow() pgx.Row { return row{b.next()} }

func (b *batchResults) Tx() pgx.Tx { return nil }

// Close calls the functions of the queries that were not read.
func (b *batchResults) Close() error {
	if b.closed {
		return b.err
	}
	b.closed = true
	for b.batch != nil && b.at < len(b.answers) && b.err == nil {
		if fn := b.batch.QueuedQueries[b.at].Fn; fn != nil {
			b.err = fn(b)
		} else {
			b.err = b.next().err
		}
	}
	return b.err
}

// batchName returns the name of a batch in reports.
func batchName(b *pgx.Batch) string {
	if len(b.QueuedQueries) == 0 {
		return "an empty batch"
	}
	return fmt.Sprintf("a batch of %d: %s", len(b.QueuedQueries), b.QueuedQueries[0].SQL)
}
