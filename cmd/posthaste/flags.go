package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

// These are flags that several commands have. A flag that means the same has the same name, default and words
// everywhere, which a test checks.

const timeFormats = ", like 2027-01-31T09:00:00Z, or so long ago: 2h, 7d"

// sinceFlag begins a span of time; readMoment reads it.
func sinceFlag(name, event string) cli.Flag {
	return &cli.StringFlag{Name: name, Usage: event + " at or after this `TIME`" + timeFormats}
}

// untilFlag ends a span of time; readMoment reads it.
func untilFlag(name, event string) cli.Flag {
	return &cli.StringFlag{Name: name, Usage: event + " before this `TIME`"}
}

// onlyFlags returns the flags of the filters that most commands about jobs have.
func onlyFlags() []cli.Flag {
	return []cli.Flag{onlyKindFlag(), onlyQueueFlag(), onlyKeyFlag(), onlyTenantFlag()}
}

func onlyKindFlag() cli.Flag  { return &cli.StringFlag{Name: "kind", Usage: "only of this `KIND`"} }
func onlyQueueFlag() cli.Flag { return &cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"} }
func onlyKeyFlag() cli.Flag   { return &cli.StringFlag{Name: "key", Usage: "only with this `KEY`"} }

func onlyTenantFlag() cli.Flag {
	return &cli.StringFlag{Name: "tenant", Usage: "only of the tenant with this `ID`"}
}

// tenantFlag names the tenant of a single thing. Without it, that is the root tenant or, through the API, the token's
// own.
func tenantFlag() cli.Flag {
	return &cli.StringFlag{Name: "tenant", Usage: "`ID` of the tenant (default: the root tenant)"}
}

func queueFlag() cli.Flag { return &cli.StringFlag{Name: "queue", Usage: "`QUEUE` (default: default)"} }

func fingerprintFlag() cli.Flag {
	return &cli.StringFlag{
		Name:  "fingerprint",
		Usage: "only dead letters of this group: a `FINGERPRINT` from \"dlq groups\"",
	}
}

func errorCodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "error-code", Usage: "only those whose latest failed attempt ended with this `CODE`"}
}

func topicFlag() cli.Flag {
	return &cli.StringSliceFlag{
		Name:  "topic",
		Usage: "only this `TOPIC`, or order.* for all that begin with \"order.\"; repeated or separated by commas",
	}
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "why, for the audit: `TEXT`"}
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{
		Name: "yes", Aliases: []string{"y"},
		Usage: "do not ask before acting on more than one; scripts must pass it",
	}
}

// dryRunFlag describes what a command does instead of acting.
func dryRunFlag(what string) cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "only " + what}
}

func rateFlag(things string) cli.Flag {
	return &cli.StringFlag{Name: "rate", Usage: "at most `N` " + things +
		" per second, like 500 or 500/s (default: no limit)"}
}

// replayFlags returns the flags of all replays of what is past.
func replayFlags(things, event string) []cli.Flag {
	return append(operatorFlags(), reasonFlag(), sinceFlag("since", event), untilFlag("until", event), onlyKeyFlag(),
		onlyTenantFlag(), rateFlag(things), yesFlag())
}

// readReplay reads the flags of replayFlags that select and pace what is replayed.
func readReplay(c *cli.Command, things string) (r operator.EventReplay, err error) {
	r.Key, r.Again = c.String("key"), c.Bool("again")
	if !c.IsSet("since") {
		err = errors.New("--since is required")
	}
	return r, errors.Join(err, readMoment(c, "since", &r.Since), readMoment(c, "until", &r.Until),
		readTenant(c, &r.Tenant), readRate(c, things, &r.PerSecond))
}

// readRate reads a rate in things per second.
func readRate(c *cli.Command, things string, to *float64) (err error) {
	v := c.String("rate")
	if v == "" {
		return nil
	}
	if *to, err = parseDecimal(strings.TrimSuffix(v, "/s")); err != nil || *to <= 0 {
		return fmt.Errorf("--rate is %q: want more than 0 %s a second, like 500 or 500/s", v, things)
	}
	return nil
}

// limitFlag limits how many things a command lists.
func limitFlag(things string) cli.Flag {
	return &cli.IntFlag{Name: "limit", Value: operator.DefaultLimit, Usage: "at most `N` " + things}
}

// readLimit returns the limit; the most is 0 for a list that is read page after page.
func readLimit(c *cli.Command, most int) (int, error) {
	switch n := c.Int("limit"); {
	case n < 1 && most == 0:
		return n, fmt.Errorf("--limit is %d: want at least 1", n)
	case n < 1 || most > 0 && n > most:
		return n, fmt.Errorf("--limit is %d: want 1 to %d", n, most)
	default:
		return n, nil
	}
}

func beforeFlag(thing string) cli.Flag {
	return &cli.StringFlag{Name: "before", Usage: "only older ones than the " + thing +
		" with this `ID`: the next page begins with the last id of this one"}
}
