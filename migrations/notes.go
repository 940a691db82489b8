package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A Note informs an operator about a database that works.
type Note struct {
	What string
	Do   string
}

func (n Note) String() string { return n.What + "; " + n.Do }

// rolesOfOurs lists the roles that outbox.secure() creates.
const rolesOfOurs = `'{outbox_owner,outbox_producer,outbox_worker,outbox_api,outbox_reader}'::text[]`

const notesSQL = `
SELECT current_setting('server_encoding'),
       coalesce((SELECT c.relrowsecurity FROM pg_class AS c WHERE c.oid = to_regclass('outbox.jobs')), true),
       EXISTS (` + blindOwners + `),
       (SELECT coalesce(string_agg(format('CREATE ROLE %I NOLOGIN;', role), ' '), '')
        FROM unnest(` + rolesOfOurs + `) AS role
        WHERE to_regrole(role) IS NULL),
       (SELECT coalesce(string_agg(DISTINCT coalesce('role ' || nullif(setrole, 0)::regrole, 'the database'), ', '), '')
        FROM (SELECT setdatabase, setrole, unnest(setconfig) AS setting FROM pg_db_role_setting) AS given
        WHERE (setdatabase = 0 OR setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
          AND setting ILIKE 'client_encoding=%' AND replace(upper(setting), '-', '') NOT IN ('CLIENT_ENCODING=UTF8', 'CLIENT_ENCODING=UNICODE'))`

// Notes returns what an operator should know: that row-level security is off, as it is if the schema's owner may not
// create roles; that it hides rows from the owner; and encodings that are not UTF-8.
func Notes(ctx context.Context, pool *pgxpool.Pool) ([]Note, error) {
	var encoding, missing, garbling string
	var secured, blind bool
	if err := pool.QueryRow(ctx, notesSQL).Scan(&encoding, &secured, &blind, &missing, &garbling); err != nil {
		return nil, err
	}
	var notes []Note
	switch {
	case missing != "" && !secured:
		notes = append(notes, Note{
			"row-level security is off, because roles of ours are missing and the owner of the schema may not make them: every login that may read a table reads every tenant's rows",
			"if there is more than one tenant, have an administrator run: " + missing +
				" Then the owner: SELECT outbox.secure();",
		})
	case !secured:
		notes = append(notes,
			Note{
				"row-level security is off: every login that may read a table reads every tenant's rows",
				"as the owner of the schema run: SELECT outbox.secure();",
			})
	}
	if blind {
		notes = append(notes, Note{
			"row-level security hides every row from the schema's owner, as after REASSIGN OWNED: ordered jobs get no place in their order, and days of events go before every sink has read them",
			"at once, as the owner of the schema run: posthaste migrate up",
		})
	}
	switch encoding {
	case "UTF8":
	case "SQL_ASCII":
		notes = append(notes,
			Note{"the database's encoding is SQL_ASCII: what clients of other encodings than UTF-8 store is not converted, and not readable to others", encodingRemedy})
	default:
		notes = append(notes,
			Note{fmt.Sprintf("the database's encoding is %s: keys and reasons with characters that it lacks are refused, and errors are stored with these escaped", encoding), encodingRemedy})
	}
	if garbling != "" {
		notes = append(notes,
			Note{
				"client_encoding is set for " + garbling +
					": what Go programs store through connections of their own is not what others read",
				"ALTER … RESET client_encoding: strings of Go are UTF-8",
			})
	}
	return notes, nil
}

const encodingRemedy = "make the database with ENCODING 'UTF8' if you can; until then add client_encoding=UTF8 to the connection strings of programs that enqueue"
