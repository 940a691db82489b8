package pgsession

import (
	"cmp"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that our code acts on.
const (
	Check                 = "23514" // check_violation: without a constraint's name, no partition accepts the row
	ReadOnly              = "25006" // read_only_sql_transaction: a failover left us on a standby
	SerializationFailure  = "40001"
	DeadlockDetected      = "40P01"
	InsufficientPrivilege = "42501"
	UndefinedTable        = "42P01"
	InvalidCatalogName    = "3D000" // there is no such database
	InvalidSchema         = "3F000" // there is no such schema
	ForeignKeyViolation   = "23503"
	NoSuchStatement       = "26000" // invalid_sql_statement_name: it was prepared in another session
	DuplicateStatement    = "42P05" // duplicate_prepared_statement
	LockNotAvailable      = "55P03" // a lock_timeout
	ObjectInUse           = "55006" // of a day: a sink has not read it
	InvalidText           = "22P02" // invalid_text_representation
	NotInEncoding         = "22P05" // the database's encoding lacks a character
	QueryCanceled         = "57014" // by a statement_timeout, or by an operator
)

// State returns the SQLSTATE of the server's answer, or "" if there was none.
func State(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// Refused reports whether the server answered, with an error.
func Refused(err error) bool { return len(State(err)) == 5 }

// IsNoPartition reports whether no partition of a table of ours accepts the row. A trigger may raise the same SQLSTATE,
// for a row that it will refuse each time, and so may the table to which it writes.
func IsNoPartition(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == Check && pgErr.Routine == "ExecFindPartition" && pgErr.SchemaName == "outbox"
}

// IsRowSecurity reports whether a policy refused a row. It does not read the message, which is in the server's
// language.
func IsRowSecurity(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == InsufficientPrivilege && pgErr.Routine == "ExecWithCheckOptions"
}

// RefusesTheRow reports whether a statement failed because of some of its rows, so that others may succeed. That is
// true of every error except errors while connecting, trouble with the connection (08), a transaction that may be
// repeated (40), the schema or our privileges (3F, 42), the server's resources (53, some of 54), a server that is being
// stopped (57) or broken (58, XX), and a server that is read-only.
func RefusesTheRow(err error) bool {
	state := State(err)
	if len(state) != 5 || state == ReadOnly || IsUnreachable(err) || isFull(err) {
		return false
	}
	switch state[:2] {
	case "08", "3F", "40", "42", "53", "57", "58", "XX":
		return IsLockedOut(err)
	}
	return true
}

// IsForbidden reports whether the server has no such schema, table or function, or denies us access to it (3F, 42). A
// retry helps only after an administrator has changed that.
func IsForbidden(err error) bool {
	state := State(err)
	return len(state) == 5 && !IsUnreachable(err) && (state[:2] == "3F" || state[:2] == "42") &&
		state != DuplicateStatement
}

// IsLoginRefused reports whether the server answers but does not let us in: it refuses the role or the password (28),
// has no such database, or the role may not connect to it. A retry helps only after an administrator has changed that.
func IsLoginRefused(err error) bool {
	state := State(err)
	return strings.HasPrefix(state, "28") || state == InvalidCatalogName ||
		state == InsufficientPrivilege && IsUnreachable(err)
}

// IsRefusal reports whether a statement failed because of some of its rows and will fail as long as it has them: a
// trigger or a constraint refuses one, or a value of one cannot be computed with. Unlike RefusesTheRow it excludes
// locks, which end, and missing partitions, which are created.
func IsRefusal(err error) bool {
	return RefusesTheRow(err) && !IsLockedOut(err) && !IsNoPartition(err)
}

// MayBeRefusal reports whether a statement failed perhaps because of some of its rows: because of a refusal, or with an
// error that arose within a function, and after which the session goes on. For a trigger may report any error for a
// single row: its own table is missing (42), another server does not answer (08), the system has a fault (58, XX). But
// what the server has run out of (53) is missing for each row, and not for a statement without rows.
func MayBeRefusal(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || IsUnreachable(err) || IsLockedOut(err) || IsNoPartition(err) || IsRepeatable(err) || isFull(err) ||
		pgErr.Code == ReadOnly {
		return false
	}
	return IsRefusal(err) || pgErr.Where != "" && pgErr.Code[:2] != "53" &&
		cmp.Or(pgErr.SeverityUnlocalized, pgErr.Severity) == "ERROR"
}

// IsRefusalOf reports whether a statement failed because of some of its rows. If the error may have either cause, it
// calls without, which executes the statement without rows: if it fails, too, the reason is not a row.
func IsRefusalOf(err error, without func() error) bool {
	return IsRefusal(err) || MayBeRefusal(err) && without() == nil
}

// Apart calls do with all rows at once. If the database refuses them, it calls do with each half, and so on: a refused
// row does not block any other. It passes rows that are refused alone to refused. It returns any other error at once.
// To tell them apart, it may call do with no rows.
func Apart[Row any](rows []Row, do func([]Row) error, refused func(Row, error)) error {
	err := do(rows)
	switch {
	case err == nil || !IsRefusalOf(err, func() error { return do(nil) }):
		return err
	case len(rows) == 1:
		refused(rows[0], err)
		return nil
	}
	if err := Apart(rows[:len(rows)/2], do, refused); err != nil {
		return err
	}
	return Apart(rows[len(rows)/2:], do, refused)
}

// IsLockedOut reports whether a statement waited too long for a row: a lock timeout, a statement timeout, a deadlock.
func IsLockedOut(err error) bool {
	if IsUnreachable(err) {
		return false
	}
	switch State(err) {
	case LockNotAvailable, QueryCanceled, DeadlockDetected:
		return true
	}
	return false
}

// IsUnreachable reports whether there was no connection on which to send the statement, for whatever reason. The
// server's own refusal to connect counts, too.
func IsUnreachable(err error) bool {
	if _, ok := errors.AsType[*sessionError](err); ok {
		return true
	}
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// IsGone reports whether no server answered, or one that stops, starts or is read-only. Once one statement succeeds
// after that, others do.
func IsGone(err error) bool {
	state := State(err)
	return len(state) != 5 || IsUnreachable(err) || state == ReadOnly || state[:2] == "08" ||
		(state[:2] == "57" && !IsLockedOut(err))
}

// IsUnacceptable reports whether the values can never be stored: bad data (22), a constraint (23), a limit of the
// server (54). A missing partition does not count: it will be created.
func IsUnacceptable(err error) bool {
	state := State(err)
	return len(state) == 5 && !IsUnreachable(err) && !IsNoPartition(err) && !isFull(err) &&
		(state[:2] == "22" || state[:2] == "23" || state[:2] == "54")
}

// isFull reports whether the server has no place for another notification, because a session that listens keeps a
// transaction open, or gives out no more transaction ids, because nothing has been frozen for too long. The server uses
// the same SQLSTATE for a row that is too large. Both pass, and concern every transaction, whatever it stores.
func isFull(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != "54000" {
		return false
	}
	switch pgErr.Routine {
	case "PreCommit_Notify", "GetNewTransactionId", "GetNewMultiXactId":
		return true
	}
	return false
}

// IsRepeatable reports whether a transaction was rolled back because of others, and may succeed when it is repeated.
func IsRepeatable(err error) bool {
	state := State(err)
	return state == SerializationFailure || state == DeadlockDetected
}

// ChangedNothing reports whether a failed statement or commit has certainly changed nothing: it was not sent, or the
// server has answered that it failed. A server that is being stopped may report a failure after it has committed (57).
// So may a pooler whose server is gone: as trouble with the connection (08) or the system (58), or an internal error
// (XX).
func ChangedNothing(err error) bool {
	if IsUnreachable(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return true
	}
	state := State(err)
	if len(state) != 5 {
		return false
	}
	switch state[:2] {
	case "08", "57", "58", "XX":
		return false
	}
	return true
}

// IsAway reports whether the database could not be asked, is stopping or starting, has no schema yet, or may do what it
// was asked if it is asked again.
func IsAway(err error) bool {
	if IsUnreachable(err) {
		return true
	}
	if state := State(err); len(state) == 5 {
		switch state {
		case ReadOnly, InvalidSchema, UndefinedTable:
			return true
		}
		return state[:2] == "08" || state[:2] == "40" || state[:2] == "53" || state[:2] == "57"
	}
	// A server that dies closes the connection in the middle of its answer.
	netErr := net.Error(nil)
	return errors.As(err, &netErr) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		pgconn.SafeToRetry(err)
}
