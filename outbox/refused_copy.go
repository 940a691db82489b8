package outbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// copyRefused is what a connection remembers of a COPY that Postgres refused,
// because row-level security applies to the role: to try each time would cost two
// round trips. A role that changes later to one that may use COPY only misses its
// speed.
const copyRefused = "posthaste.copy_refused"

// refusesCopy reports whether the connection of a transaction has refused a COPY
// before. The map is the connection's, and so as safe to use as that is.
func refusesCopy(db DB) bool {
	custom := customData(db)
	return custom != nil && custom[copyRefused] != nil
}

// rememberRefusal has the connection remember it, if that is what err says.
func rememberRefusal(db DB, err error) {
	if custom := customData(db); custom != nil && isCopyRefused(err) {
		custom[copyRefused] = true
	}
}

func customData(db DB) map[string]any {
	switch db := db.(type) {
	case *pgx.Conn:
		return db.PgConn().CustomData()
	case interface{ Conn() *pgx.Conn }: // pgx.Tx
		if conn := db.Conn(); conn != nil {
			return conn.PgConn().CustomData()
		}
	}
	return nil
}

// isCopyRefused reports whether err is "COPY FROM not supported with row-level
// security", as what Postgres does not support at all has this code.
func isCopyRefused(err error) bool {
	return pgsession.State(err) == "0A000"
}
