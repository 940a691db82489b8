package operator

import "github.com/posthaste-dev/posthaste/internal/sqlgen"

// Within is an operator in a transaction.
func Within(tx sqlgen.DBTX) *Operator {
	return &Operator{db: sqlgen.New(tx), by: by{actor: unknownActor}}
}
