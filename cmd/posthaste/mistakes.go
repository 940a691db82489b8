package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// What the parser of flags says: it names no command, gives every flag one dash, and
// quotes what strconv returned.
var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	badValue    = regexp.MustCompile(`(?s)^invalid value (".*") for flag -(\S+): (.*)$`)
	noValue     = regexp.MustCompile(`^flag needs an argument: --?(.*)$`)
)

// flagMistake is what the parser of flags found wrong, in words that name the command and
// the flag as a person writes them.
func flagMistake(c *cli.Command, err error) string {
	text := err.Error()
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s has no flag %s", c.FullName(), dashed(m[1]))
	}
	if m := noValue.FindStringSubmatch(text); m != nil {
		return dashed(m[1]) + " has no value"
	}
	m := badValue.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	if strings.HasPrefix(m[3], "--") { // a validator of ours said it all
		return m[3]
	}
	return fmt.Sprintf("%s is %s: %s", dashed(m[2]), m[1], wantedOf(c, m[2], m[3]))
}

// wantedOf is what the value of a flag has to be, or what the parser said.
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

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// wayOn is what helps against an error of the database that says only what is missing; "" of
// the others, and of those whose text has it already.
func wayOn(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || strings.Contains(err.Error(), "posthaste migrate") {
		return ""
	}
	switch pg.Code {
	case pgsession.UndefinedTable, pgsession.InvalidSchema, undefinedColumn, undefinedFunction:
		return `the schema outbox is missing or is not this build's: see "posthaste migrate status", run "posthaste migrate up"`
	case pgsession.InsufficientPrivilege:
		return `"posthaste docs guides/tenants" says which of the roles outbox_… a user of the database needs for what, and how to grant it`
	}
	return ""
}

const (
	undefinedColumn   = "42703"
	undefinedFunction = "42883"
)
