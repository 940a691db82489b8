package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type keyActs interface {
	Keys(context.Context, operator.KeyFilter) ([]operator.Key, error)
	Key(context.Context, operator.KeyName) (operator.Key, error)
	Unblock(context.Context, operator.KeyName) (retried int, err error)
	Blocks(context.Context, operator.KeyName) (string, error)
	UnblockIf(ctx context.Context, name operator.KeyName, blocks string) (retried int, err error)
}

var _ keyActs = (*operator.Operator)(nil)

func (p *program) keysCommand() *cli.Command {
	return &cli.Command{
		Name:  "keys",
		Usage: "list and show concurrency and ordering keys; unblock a parked one",
		Commands: []*cli.Command{
			{
				Name:  "list",
				Usage: "list keys with blocked jobs and parked keys, the longest waiting first",
				Description: `Of the dead letters that the others of a key pass over, it counts those among the newest
10 000 dead letters of all keys, and the one for which the key is parked.`,
				Flags: append(operatorFlags(), outputFlag(), onlyQueueFlag(),
					&cli.BoolFlag{Name: "parked", Usage: "only parked ones"}, onlyTenantFlag(), limitFlag("keys")),
				Action: p.listKeys,
			},
			{
				Name: "show", Usage: "show one key", ArgsUsage: "KEY [--queue QUEUE]",
				Flags: append(operatorFlags(), outputFlag(), queueFlag(), tenantFlag()), Action: p.showKey,
			},
			{
				Name: "unblock", Usage: "retry the dead letters that hold a key up, at their old places, and let the others follow", ArgsUsage: "KEY [--queue QUEUE]",
				Flags:  append(operatorFlags(), queueFlag(), tenantFlag(), reasonFlag(), dryRunFlag("show the key"), yesFlag()),
				Action: p.unblockKey,
			},
		},
	}
}

func (p *program) listKeys(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	f := operator.KeyFilter{Queue: c.String("queue"), Parked: c.Bool("parked")}
	limit, err := readLimit(c, 0)
	if err = errors.Join(err, readTenant(c, &f.Tenant)); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o keyActs) error {
		keys, err := collectKeys(ctx, o, f, limit)
		if err != nil {
			return inFlagWords(err)
		}
		return p.printKeys(c, keys)
	})
}

// collectKeys reads page after page until there are enough. A key that occurs on a later page again stays where it was
// first.
func collectKeys(ctx context.Context, o keyActs, f operator.KeyFilter, limit int) (keys []operator.Key, err error) {
	listed := map[operator.KeyName]bool{}
	for len(keys) < limit {
		f.Limit = min(limit-len(keys), operator.MaxLimit)
		page, err := o.Keys(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, k := range page {
			if !listed[k.KeyName] {
				keys = append(keys, k)
			}
			listed[k.KeyName] = true
			f.After = k.Place()
		}
		if len(page) < f.Limit {
			break
		}
	}
	return keys, nil
}

func (p *program) printKeys(c *cli.Command, keys []operator.Key) error {
	l := listing{header: []string{
		"queue", "key", "blocked", "blocked_since", "waiting", "running", "dead_letters",
		"parked_since", "parks_at", "parked_for", "tenant",
	}}
	for _, k := range keys {
		l.add(k.Queue, k.Key, k.Blocked, instant(k.BlockedSince), k.Waiting, k.Running, k.DeadLetters,
			instant(k.ParkedSince), instant(k.ParksAt), idOrNone(k.ParkedFor), k.Tenant.String())
	}
	return p.print(c, l)
}

// idOrNone returns "" for the zero id.
func idOrNone(id outbox.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

func keyName(c *cli.Command) (name operator.KeyName, err error) {
	if err := wantArgs(c, 1, 1); err != nil {
		return name, err
	}
	name = operator.KeyName{Queue: cmp.Or(c.String("queue"), engine.DefaultQueue), Key: c.Args().First()}
	if err := readTenant(c, &name.Tenant); err != nil {
		return name, &usageError{err}
	}
	return name, nil
}

func (p *program) showKey(ctx context.Context, c *cli.Command) error {
	name, err := keyName(c)
	if err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o keyActs) error {
		key, err := o.Key(ctx, name)
		if err != nil {
			return err
		}
		return p.printKeys(c, []operator.Key{key})
	})
}

// toUnblock describes what there is to unblock. Not all dead letters block a key: some were skipped.
func toUnblock(k operator.Key) string {
	parked := "not parked"
	if !k.ParkedSince.IsZero() {
		parked = "parked"
	}
	return fmt.Sprintf("%s; blocked: %d; dead letters: %d", parked, k.Blocked, k.DeadLetters)
}

func (p *program) unblockKey(ctx context.Context, c *cli.Command) error {
	name, err := keyName(c)
	if err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o keyActs) error {
		blocks, err := o.Blocks(ctx, name) // first, so that it stands for nothing that the question does not count
		if err != nil {
			return err
		}
		key, err := o.Key(ctx, name)
		if err != nil {
			return err
		}
		if c.Bool("dry-run") {
			_, err = fmt.Fprintf(p.stdout, "would unblock: %s (%s)\n", name, toUnblock(key))
			return err
		}
		verb := fmt.Sprintf("unblock %s (%s): retry, or let run, up to", name, toUnblock(key))
		if err := p.sure(ctx, c, verb, int(key.Blocked+key.DeadLetters), "jobs"); err != nil {
			return err
		}
		unblock := func() (int, error) { return o.UnblockIf(ctx, name, blocks) }
		if c.Bool("yes") { // whatever blocks it
			unblock = func() (int, error) { return o.Unblock(ctx, name) }
		}
		retried, err := unblock()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "unblocked: %s (dead letters retried: %d)\n", name, retried)
		return err
	})
}
