package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/access"
)

const (
	defaultLifetime = "90d"
	maxLifetime     = 10 * 365 * 24 * time.Hour
)

func (p *program) tokensCommand() *cli.Command {
	return &cli.Command{
		Name:  "tokens",
		Usage: "create, list and revoke bearer tokens of the API",
		Commands: []*cli.Command{
			{
				Name:      "create",
				Usage:     "create a token and print it once",
				ArgsUsage: "NAME",
				Flags: append(flags("database-url"),
					&cli.StringSliceFlag{
						Name: "capability", Aliases: []string{"c"},
						Usage: "a `CAPABILITY` of the token, repeated or separated by commas: " +
							strings.Join(capabilityNames(), ", "),
					},
					tenantFlag(),
					&cli.BoolFlag{Name: "all-tenants", Usage: "it sees and acts on the jobs of every tenant"},
					&cli.StringFlag{
						Name: "lifetime", Value: defaultLifetime,
						Usage: "`DURATION` until it expires, or forever",
					},
					byFlag(),
				),
				Action: p.createToken,
			},
			{
				Name:   "list",
				Usage:  "list the tokens without their secrets, newest first",
				Flags:  append(flags("database-url"), outputFlag()),
				Action: p.listTokens,
			},
			{
				Name:      "revoke",
				Usage:     "revoke tokens permanently; every process refuses them within 5s",
				ArgsUsage: "ID…",
				Flags:     append(flags("database-url"), byFlag()),
				Action:    p.revokeTokens,
			},
		},
	}
}

// byFlag names the person who acts, which is stored.
func byFlag() cli.Flag {
	return &cli.StringFlag{Name: "by", Usage: "`NAME` to record as the actor (default: ACCOUNT@HOST of the caller)"}
}

func (p *program) by(c *cli.Command) string {
	return cmp.Or(c.String("by"), p.actor().Name)
}

func capabilityNames() (names []string) {
	for _, c := range access.Capabilities() {
		names = append(names, string(c))
	}
	return names
}

// withTokens runs a command's act on the tokens of its database.
func (p *program) withTokens(ctx context.Context, c *cli.Command,
	act func(context.Context, *access.Tokens) error,
) error {
	s, err := p.load(c, "database-url")
	if err != nil {
		return err
	}
	return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		return act(ctx, access.NewTokens(pool, access.TokensConfig{}))
	})
}

func (p *program) createToken(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	grant, err := p.tokenGrant(c)
	if err != nil {
		return &usageError{err}
	}
	return p.withTokens(ctx, c, func(ctx context.Context, tokens *access.Tokens) error {
		token, info, err := tokens.Create(ctx, grant)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.stdout, token.Reveal()); err != nil {
			_, revoked := tokens.Revoke(context.WithoutCancel(ctx), info.ID, grant.CreatedBy)
			return errors.Join(fmt.Errorf("print the token, which nobody can use now: %w", err), revoked)
		}
		fmt.Fprintf(p.stderr, "posthaste: token %s of %s; it is not stored and cannot be shown again\n", info.ID,
			info.Name)
		return nil
	})
}

func (p *program) tokenGrant(c *cli.Command) (access.Grant, error) {
	grant := access.Grant{Name: c.Args().First(), AllTenants: c.Bool("all-tenants"), CreatedBy: p.by(c)}
	var errs []error
	for _, name := range c.StringSlice("capability") {
		capability, err := access.ParseCapability(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--capability: %w", err))
		}
		if !slices.Contains(grant.Capabilities, capability) {
			grant.Capabilities = append(grant.Capabilities, capability)
		}
	}
	if len(grant.Capabilities) == 0 {
		errs = append(errs, fmt.Errorf("--capability is missing, want at least one of %s",
			strings.Join(capabilityNames(), ", ")))
	}
	errs = append(errs, readTenant(c, &grant.Tenant))
	if v := c.String("lifetime"); v != "forever" {
		d, err := parseDuration(v, time.Minute, maxLifetime)
		if err != nil {
			errs = append(errs, fmt.Errorf("--lifetime is %q: %w, or forever", v, err))
		}
		grant.Lifetime = d
	}
	return grant, errors.Join(errs...)
}

func (p *program) listTokens(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return p.withTokens(ctx, c, func(ctx context.Context, tokens *access.Tokens) error {
		list, err := tokens.List(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{
			"id", "name", "tenant", "all_tenants", "capabilities", "expires_at",
			"last_used_at", "revoked_at", "created_at", "created_by",
		}}
		for _, t := range list {
			l.add(t.ID, t.Name, t.Tenant, t.AllTenants, strings.Join(t.Capabilities, ","), instant(t.ExpiresAt),
				instant(t.LastUsedAt),
				instant(t.RevokedAt), instant(t.CreatedAt), t.CreatedBy)
		}
		return p.print(c, l)
	})
}

var tokenID = regexp.MustCompile(`^[a-z2-7]{16}$`)

// revokeTokens continues after an invalid id: the other tokens must not remain valid.
func (p *program) revokeTokens(ctx context.Context, c *cli.Command) error {
	if c.NArg() == 0 {
		return wantArgs(c, 1, 1)
	}
	for _, id := range c.Args().Slice() {
		if !tokenID.MatchString(id) {
			return usagef("%.20q is not the id of a token: want the 16 letters and digits that tokens list shows", id)
		}
	}
	return p.withTokens(ctx, c, func(ctx context.Context, tokens *access.Tokens) error {
		var errs []error
		for _, id := range c.Args().Slice() {
			if _, err := tokens.Revoke(ctx, id, p.by(c)); err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintln(p.stdout, id)
		}
		return errors.Join(errs...)
	})
}
