package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

type floorStatement interface {
	ReadFloor(context.Context) (sqlgen.ReadFloorRow, error)
}

// awaitFloor returns an error if this build is too old for the schema. It retries until the database answers or ctx
// ends.
func awaitFloor(ctx context.Context, p *process, db floorStatement) error {
	var tooOld error
	_ = p.untilAnswered(ctx, "schema not read", func(bound context.Context) error {
		floor, err := db.ReadFloor(bound)
		switch {
		case err == nil, errors.Is(err, pgx.ErrNoRows):
			tooOld = release.Check(int(floor.Revision), floor.Release)
			return nil
		case pgsession.State(err) == pgsession.InsufficientPrivilege: // the login has a role that is not one of ours
			p.log.LogAttrs(ctx, slog.LevelWarn, "whether this build is too old for the schema is not known", slog.String("err", err.Error()))
			return nil
		}
		return err
	})
	if tooOld != nil {
		return fmt.Errorf("dispatcher: %w", tooOld)
	}
	return nil
}
