package migrations

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/release"
)

// revision numbers the functions and views of a release. By it a build knows whether those in the database are older or
// newer than its own.
const revision = release.Revision

// file is one of FS.
type file struct {
	name     string // as in FS: 00001_tables.sql, functions/cancel.sql
	text     string
	checksum [sha256.Size]byte
}

func (f file) numbered() bool { return isNumbered(f.name) }

func (f file) isView() bool { return path.Dir(f.name) == "views" }

func (f file) revision() int {
	if f.numbered() {
		return 0
	}
	return revision
}

func isNumbered(name string) bool { return !strings.Contains(name, "/") }

// version returns the number that the name of a numbered file begins with.
func version(name string) int64 {
	number, _, _ := strings.Cut(name, "_")
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("migrations: %s has no number", name))
	}
	return v
}

// files returns the numbered files, then functions, then views, in the order in which they are applied.
var files = sync.OnceValue(func() (all []file) {
	for _, pattern := range []string{"*.sql", "functions/*.sql", "views/*.sql"} {
		names, err := fs.Glob(FS, pattern) // sorted
		if err != nil {
			panic(err)
		}
		for _, name := range names {
			text, err := FS.ReadFile(name)
			if err != nil {
				panic(err)
			}
			all = append(all, file{name, string(text), sha256.Sum256(text)})
		}
	}
	return all
})

// Latest returns the number of this build's latest numbered file.
func Latest() (latest int64) {
	for _, f := range files() {
		if f.numbered() {
			latest = max(latest, version(f.name))
		}
	}
	return latest
}

// Condition is how a database's schema relates to that of this build.
type Condition string

// The conditions of a schema. This build works with one that is Current or Ahead.
const (
	Current Condition = "current"
	Behind  Condition = "behind"  // missing, or an older build's: Up brings it up to date
	Ahead   Condition = "ahead"   // the next release has migrated it
	Edited  Condition = "edited"  // made from another text of a file that this build has, too
	TooNew  Condition = "too-new" // migrated by a release that does not support this build
)

// State is the condition of a schema. File is the first file that differs; "" if the schema is current, too new or
// missing.
type State struct {
	Condition Condition
	File      string
	Floor     string // of a schema that is TooNew: the oldest release whose builds work with it
}

// Usable reports whether this build can work with the schema.
func (s State) Usable() bool { return s.Condition == Current || s.Condition == Ahead }

// String describes how the schema relates to this build's.
func (s State) String() string {
	switch {
	case s.Condition == Behind && s.File == "":
		return "the schema outbox is missing"
	case s.Condition == Behind:
		return "the schema is behind this build: it lacks this build's " + s.File
	case s.Condition == Ahead:
		return fmt.Sprintf("the schema is ahead of this build: it has %s of a newer one", s.File)
	case s.Condition == Edited:
		return fmt.Sprintf("the schema is edited: another text of %s than this build's was applied", s.File)
	case s.Condition == TooNew:
		return fmt.Sprintf("the schema is too new for this build (release %s)", release.Name())
	default:
		return "the schema is this build's"
	}
}

// Remedy returns what to do about a schema that is not Usable.
func (s State) Remedy() string {
	if s.Condition == TooNew {
		return (&release.TooOldError{Floor: s.Floor}).Remedy()
	}
	if s.Condition == Edited && isNumbered(s.File) {
		return "a numbered file does not change once it is applied: make this database again, or find the build that made it"
	}
	return "run: posthaste migrate up"
}

// Look compares the database's schema with this build's; it creates and locks nothing. The role must be allowed to read
// outbox.schema_version and outbox.schema_files; those of dispatchers and the API are. An unsupported server is an
// error, because our statements are not known to work there.
func Look(ctx context.Context, pool *pgxpool.Pool) (State, error) {
	if err := refuseForeign(ctx, pool); err != nil {
		return State{}, err
	}
	state, _, err := look(ctx, pool)
	return state, err
}

// A Status compares a file of the schema with the database's. Applied is false for a file that the database lacks.
type Status struct {
	Name      string
	Condition Condition
	Applied   bool
}

// List returns the files of this build with their status, in the order in which they are
// applied, and then those that only the database knows.
func List(ctx context.Context, pool *pgxpool.Pool) ([]Status, error) {
	_, recorded, err := look(ctx, pool)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, f := range files() {
		list = append(list, Status{Name: f.name, Condition: recorded.compare(f), Applied: recorded[f.name].applied})
	}
	for _, name := range recorded.unknown() {
		list = append(list, Status{Name: name, Condition: recorded.ofUnknown(name), Applied: true})
	}
	return list, nil
}

// recorded has the files that a database has recorded, by their names.
type recorded map[string]entry

type entry struct {
	applied  bool
	checksum [sha256.Size]byte
	revision int
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func look(ctx context.Context, db querier) (State, recorded, error) {
	all, err := read(ctx, db)
	if err != nil {
		return State{}, nil, err
	}
	if tooOld, ok := errors.AsType[*release.TooOldError](release.Check(all.floor())); ok {
		return State{Condition: TooNew, Floor: tooOld.Floor}, all, nil
	}
	return all.state(), all, nil
}

// read reads the record. It is empty if the schema is missing or is one of the old chain.
func read(ctx context.Context, db querier) (recorded, error) {
	var exists bool
	if err := db.QueryRow(ctx, `SELECT to_regclass('outbox.schema_files') IS NOT NULL`).Scan(&exists); err != nil ||
		!exists {
		return recorded{}, err
	}
	rows, err := db.Query(ctx, `
		SELECT coalesce(f.name, lpad(v.version_id::text, 5, '0')), v.version_id IS NOT NULL OR f.name LIKE '%/%', coalesce(f.checksum, ''), coalesce(f.revision, 0)
		FROM outbox.schema_files AS f
		FULL JOIN (SELECT DISTINCT version_id FROM `+VersionTable+` WHERE is_applied AND version_id > 0) AS v
		    ON substring(f.name FROM '^[0-9]+')::bigint = v.version_id`)
	if err != nil {
		return nil, err
	}
	all := recorded{}
	var name string
	var e entry
	var sum []byte
	_, err = pgx.ForEachRow(rows, []any{&name, &e.applied, &sum, &e.revision}, func() error {
		e.checksum = [sha256.Size]byte{}
		copy(e.checksum[:], sum)
		all[name] = e
		return nil
	})
	return all, err
}

// floors begin the name of the row that stores the floor: the release's name follows, and the
// row's revision is the release's.
const floors = "floor/"

// floor returns the oldest release whose builds work with the schema; 0 if none is stored.
func (r recorded) floor() (revision int, name string) {
	for row, e := range r {
		if of, is := strings.CutPrefix(row, floors); is && e.revision > revision {
			revision, name = e.revision, of
		}
	}
	return revision, name
}

// revision returns the revision of the newest build that made the functions and views.
func (r recorded) revision() (newest int) {
	for _, e := range r {
		newest = max(newest, e.revision)
	}
	return newest
}

// compare returns the condition that one file of this build implies. If a newer build made the functions, one that is
// not recorded was removed by that build.
func (r recorded) compare(f file) Condition {
	e, known := r[f.name]
	switch {
	case !known && !f.numbered() && r.revision() > revision:
		return Ahead
	case !known || !e.applied:
		return Behind
	case e.checksum == f.checksum && e.revision == f.revision():
		return Current
	case e.revision > f.revision():
		return Ahead
	case e.revision < f.revision():
		return Behind
	default:
		return Edited
	}
}

// unknown returns the recorded files that this build lacks, sorted.
func (r recorded) unknown() (names []string) {
	for name := range r {
		if !strings.HasPrefix(name, floors) &&
			!slices.ContainsFunc(files(), func(f file) bool { return f.name == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ofUnknown returns the condition that a recorded file implies if this build lacks it: a newer build added it, or it is
// a function removed since.
func (r recorded) ofUnknown(name string) Condition {
	switch {
	case isNumbered(name) || r[name].revision > revision:
		return Ahead
	case r[name].revision < revision:
		return Behind
	default:
		return Edited
	}
}

// state returns the condition of the whole. An edited numbered file outranks all, because nothing repairs it; then what
// is missing, because this build needs it. Where another build's numbered files are applied, functions do not count.
func (r recorded) state() State {
	if len(r) == 0 {
		return State{Condition: Behind}
	}
	var first [4]string // the first file of each rank, best first
	note := func(name string, condition Condition) {
		rank := 3
		switch {
		case condition == Current:
			return
		case condition == Edited && isNumbered(name):
			rank = 0
		case condition == Behind:
			rank = 1
		case condition == Ahead:
			rank = 2
		}
		if first[rank] == "" {
			first[rank] = name
		}
	}
	for _, f := range files() {
		note(f.name, r.compare(f))
	}
	for _, name := range r.unknown() {
		note(name, r.ofUnknown(name))
	}
	for rank, condition := range []Condition{Edited, Behind, Ahead, Edited} {
		if first[rank] != "" {
			return State{Condition: condition, File: first[rank]}
		}
	}
	return State{Condition: Current}
}

// record records the files that are applied and the floor, and removes functions and views that no longer exist.
func record(ctx context.Context, tx pgx.Tx, applied []file) error {
	floor, of := release.Floor()
	names, revisions := []string{floors + of}, []int{floor}
	none := sha256.Sum256(nil)
	sums := [][]byte{none[:]}
	for _, f := range applied {
		names, sums, revisions = append(names, f.name), append(sums, f.checksum[:]), append(revisions, f.revision())
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO outbox.schema_files AS f (name, checksum, revision)
		SELECT * FROM unnest($1::text[], $2::bytea[], $3::integer[])
		ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, revision = excluded.revision, applied_at = statement_timestamp()
		WHERE (f.checksum, f.revision) IS DISTINCT FROM (excluded.checksum, excluded.revision)`, names, sums, revisions); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM outbox.schema_files WHERE name LIKE '%/%' AND name <> ALL ($1)`, names)
	return err
}
