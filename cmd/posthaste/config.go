package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/urfave/cli/v3"
)

func (p *program) configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "print every setting with its effective value and source, without secrets",
		Flags: append(append(flags(), flags("api", "token")...), outputFlag()),
		Action: func(_ context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			if err := p.print(c, p.effective(c)); err != nil {
				return err
			}
			s, err := p.load(c) // print mistakes after the settings
			for _, text := range strangeVariables(os.Environ(), s.relayConfig) {
				p.note(text)
			}
			_, more := p.load(c, "api", "token")
			return errors.Join(err, more)
		},
	}
}

func (p *program) effective(c *cli.Command) listing {
	t := listing{header: []string{"setting", "value", "source"}}
	for _, s := range slices.Concat(allSettings, apiSettings) {
		v := p.choose(c, s)
		t.add(s.flag, s.shown(v.value), v.source)
	}
	return t
}
