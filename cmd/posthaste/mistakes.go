package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// These match the messages of the flag parser, which names no command, gives every flag one dash, and quotes errors of
// strconv.
var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	badValue    = regexp.MustCompile(`(?s)^invalid value (".*") for flag -(\S+): (.*)$`)
	noValue     = regexp.MustCompile(`^flag needs an argument: --?(.*)$`)
)

// flagMistake describes a mistake found by the flag parser, naming the command and the flag as a person writes them.
func flagMistake(c *cli.Command, err error) string {
	text := err.Error()
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s has no flag %s", c.FullName(), dashed(m[1]))
		prints := slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), "output") })
		if m[1] == "json" && prints {
			text += ": write -o json"
		}
		return text
	}
	if m := noValue.FindStringSubmatch(text); m != nil {
		return dashed(m[1]) + " has no value"
	}
	m := badValue.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	if strings.HasPrefix(m[3], "--") { // our validator's message is complete
		return m[3]
	}
	return fmt.Sprintf("%s is %s: %s", dashed(m[2]), m[1], wantedOf(c, m[2], m[3]))
}

// wantedOf returns what the value of a flag must be, or else the parser's message.
func wantedOf(c *cli.Command, name, said string) string {
	for _, flag := range c.Flags {
		for _, n := range flag.Names() {
			if n != name {
				continue
			}
			switch flag.(type) {
			case *cli.IntFlag, *cli.Int64Flag:
				return "want a whole number"
			case *cli.DurationFlag:
				return "want a duration like 500ms, 30s or 5m"
			case *cli.BoolFlag:
				return "want true or false, or the flag alone"
			}
		}
	}
	return said
}

// plainly returns the text of an error. For a failed connection it contains one cause per address: the driver tries
// some twice, with TLS and without, and the last attempt is the one that the settings demanded.
func plainly(err error) string {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err.Error()
	}
	var addresses []string
	causes := map[string]string{}
	for line := range strings.Lines(connect.Unwrap().Error()) {
		address, cause := strings.TrimSpace(line), "" // a name that is not found has no address
		if m := dialed.FindStringSubmatch(address); m != nil {
			address, cause = m[1], ": "+m[2]
		}
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
		causes[address] = cause
	}
	for i, address := range addresses {
		addresses[i] += causes[address]
	}
	return strings.Replace(err.Error(), connect.Error(), "cannot reach postgres as "+connect.Config.User+": "+
		strings.Join(addresses, "; "), 1)
}

// dialed matches the driver's message about an address: 127.0.0.1:5432 (localhost): CAUSE.
var dialed = regexp.MustCompile(`^(\S+:\d+|\S*/\S+) \(.*?\): (.*)$`)

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// wayOn returns advice about an error of the database that only states what is missing; "" for others, and for those
// whose text already contains it.
func wayOn(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || strings.Contains(err.Error(), "posthaste migrate") {
		return ""
	}
	switch pg.Code {
	case pgsession.UndefinedTable, pgsession.InvalidSchema, undefinedColumn, undefinedFunction:
		return `the schema outbox is missing or is not this build's: see "posthaste migrate status", run "posthaste migrate up"`
	case pgsession.InsufficientPrivilege:
		return `"posthaste docs guides/tenants" says which of the roles outbox_… a user of the database needs for what, and how to grant it; to migrate, be the owner of the schema outbox, or of the database if there is no schema yet`
	}
	return ""
}

const (
	undefinedColumn   = "42703"
	undefinedFunction = "42883"
)
