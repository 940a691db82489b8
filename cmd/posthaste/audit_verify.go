package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

type auditVerifier interface {
	VerifyAudit(ctx context.Context, noted operator.AuditHead) (operator.AuditCheck, error)
}

var _ auditVerifier = (*operator.Operator)(nil)

func (p *program) auditVerifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "check that the audit is what was recorded",
		Description: `Reads the whole audit and its chain of hashes, and reports every act that was changed,
removed, inserted or moved. It prints the chain's head: store it where those who can
change the database cannot write. With --from it checks that a head stored earlier is
still in the chain, which also detects a truncated and a rebuilt chain.

Exit status: 0 the audit is what was recorded, 1 it is not, 2 the command line is wrong.`,
		Flags: append(operatorFlags(), outputFlag(),
			&cli.StringFlag{Name: "from", Usage: "a head that was stored earlier, `SEQ:HASH`"},
		),
		Action: p.verifyAudit,
	}
}

func (p *program) verifyAudit(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var noted operator.AuditHead
	if text := c.String("from"); text != "" {
		var err error
		if noted, err = operator.ParseAuditHead(text); err != nil {
			return inFlagWords(err)
		}
	}
	return operate(ctx, p, c, func(ctx context.Context, o auditVerifier) error {
		check, err := o.VerifyAudit(ctx, noted)
		if err != nil {
			return err
		}
		l := listing{header: []string{"acts", "trimmed", "broken", "head"}}
		l.add(check.Acts, check.Trimmed, check.Broken, check.Head.String())
		if err := p.print(c, l); err != nil || check.Broken == 0 {
			return err
		}
		return broken(check)
	})
}

// broken lists what was found, one per line.
func broken(check operator.AuditCheck) error {
	var b strings.Builder
	fmt.Fprintf(&b, "the audit is not what was recorded: %d broken", check.Broken)
	for _, at := range check.Breaks {
		fmt.Fprintf(&b, "\n%s", at)
	}
	if more := check.Broken - int64(len(check.Breaks)); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return cli.Exit(b.String(), exitFailed)
}
