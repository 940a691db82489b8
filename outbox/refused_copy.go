package outbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// copyRefused marks a connection on which Postgres refused COPY because row-level security applies to the role: trying
// each time would cost two round trips. If the role is later allowed to use COPY, it only misses the speed.
const copyRefused = "posthaste.copy_refused"

// refusesCopy reports whether the connection of a transaction has refused a COPY before. The map belongs to the
// connection, and so is as safe to use as the connection is.
func refusesCopy(db DB) bool {
	custom := customData(db)
	return custom != nil && custom[copyRefused] != nil
}

// rememberRefusal marks the connection if err is a refusal of COPY.
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

// isCopyRefused reports whether err is "COPY FROM not supported with row-level security", going by the code of features
// that Postgres does not support.
func isCopyRefused(err error) bool {
	return pgsession.State(err) == "0A000"
}
