package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/migrations"
)

func (p *program) migrateSQLCommand() *cli.Command {
	return &cli.Command{
		Name:  "sql",
		Usage: "print the SQL of the migrations, to apply by hand",
		Description: `The script records what it applied, so that "posthaste migrate status" and the
processes know. Apply it with: psql --set ON_ERROR_STOP=1`,
		Flags: []cli.Flag{&cli.IntFlag{
			Name:  "after",
			Usage: "leave out the numbered files up to this `VERSION`, which the database has",
		}},
		Action: func(_ context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			after := int64(c.Int("after"))
			if newest := migrations.Latest(); after < 0 || after > newest {
				return usagef("--after is %d: want 0 to %d, the newest file of this build", after, newest)
			}
			_, err := fmt.Fprint(p.stdout, migrations.Script(after))
			return err
		},
	}
}
