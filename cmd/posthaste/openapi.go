package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/api"
)

func (p *program) openAPICommand() *cli.Command {
	return &cli.Command{
		Name:  "openapi",
		Usage: "print the OpenAPI 3.1 document of the API",
		Action: func(_ context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			text, err := api.OpenAPI()
			if err != nil {
				return err
			}
			_, err = p.stdout.Write(text)
			return err
		},
	}
}
