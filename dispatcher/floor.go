package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

type floorStatement interface {
	ReadFloor(context.Context) (sqlgen.ReadFloorRow, error)
}

// awaitFloor returns an error if this build is too old for the schema. It asks until the database
// answers or ctx ends.
func awaitFloor(ctx context.Context, p *process, db floorStatement) error {
	var retry backoff.Backoff
	for {
		bound, cancel := bounded(ctx)
		floor, err := db.ReadFloor(bound)
		cancel()
		switch {
		case err == nil, errors.Is(err, pgx.ErrNoRows):
			if err := release.Check(int(floor.Revision), floor.Release); err != nil {
				return fmt.Errorf("dispatcher: %w", err)
			}
			return nil
		case pgsession.State(err) == pgsession.InsufficientPrivilege: // of a role that is not one of ours
			p.log.LogAttrs(ctx, slog.LevelWarn, "whether this build is too old for the schema is not known", slog.String("err", err.Error()))
			return nil
		}
		p.health.Failed(err)
		p.health.Complain(ctx, "schema not read", err)
		if retry.Wait(ctx) != nil {
			return nil
		}
	}
}
