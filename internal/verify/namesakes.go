package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// namesakes runs row B2.
func namesakes(ctx context.Context, r *Run) error { return runZombies(ctx, r, "twin", true) }

// rename gives the leases that one worker holds to the other worker's name, if the row is about namesakes. A dispatcher
// adds digits to its configured name, so that no two have the same: the fence must not depend on that.
func (z *zombie) rename(ctx context.Context, from, to *child.Process) error {
	if z.worker == "" {
		return nil
	}
	var names [2]string
	for i, p := range []*child.Process{from, to} {
		lines, err := logged(p, saying("dispatcher started"))
		if err != nil || len(lines) == 0 {
			return fmt.Errorf("the log of %s does not have the worker's name: %w", p.Name, err)
		}
		names[i] = lines[0].Worker
	}
	return pgx.BeginFunc(ctx, z.DB, func(tx pgx.Tx) error { // unrecorded: no statement of ours moved the job
		if _, err := tx.Exec(ctx, `ALTER TABLE outbox.jobs DISABLE TRIGGER verify_changed`); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE outbox.jobs SET lease_owner = $2 WHERE lease_owner = $1`, names[0], names[1])
		if err != nil {
			return err
		}
		z.Count("leases renamed to the other worker", int(tag.RowsAffected()))
		_, err = tx.Exec(ctx, `ALTER TABLE outbox.jobs ENABLE TRIGGER verify_changed`)
		return err
	})
}

// checkNamesakes checks that the row did what it describes: both workers' leases had one name while the zombie was
// awake, and half of the attempts had the same number.
func (z *zombie) checkNamesakes(ctx context.Context, stops int) error {
	rows, _ := z.DB.Query(
		ctx, `SELECT regexp_replace(worker, '-[0-9a-f]*$', ' ') || attempt, count(*)::int FROM outbox.history GROUP BY 1`)
	counts := map[string]int{}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { counts[name] = n; return nil }); err != nil {
		return err
	}
	all := stops * zombieRounds * len(zombieVerbs)
	half := all / 2
	z.Expect("leases renamed to the other worker and back",
		float64(z.record.Counts["leases renamed to the other worker"]), "=", float64(2*all))
	z.Expect("jobs completed by the replacement under the same name and attempt number", float64(counts["twin 1"]), "=",
		float64(half))
	z.Expect("jobs completed by the replacement under the same name, second attempt", float64(counts["twin 2"]), "=",
		float64(half))
	z.Expect("other ways in which jobs were completed", float64(len(counts)-2), "=", 0)
	return nil
}
