package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// chosen is a setting's value and its source.
type chosen struct {
	setting
	value  string
	source string // "--flag", the variable's name, or byDefault
}

const byDefault = "default"

// flags returns those of the named settings; without names, of all.
func flags(names ...string) []cli.Flag {
	var list []cli.Flag
	for _, s := range selected(names) {
		usage := s.usage + " [$" + strings.Join(s.envs, ", $") + "]"
		if s.fallback != "" {
			usage += " (default: " + s.fallback + ")"
		}
		if s.flag == "webhook" {
			list = append(list, &cli.StringSliceFlag{Name: s.flag, Usage: usage})
		} else {
			list = append(list, &cli.StringFlag{Name: s.flag, Usage: usage})
		}
	}
	return list
}

func selected(names []string) []setting {
	if len(names) == 0 {
		return allSettings
	}
	return slices.DeleteFunc(slices.Concat(allSettings, apiSettings), func(s setting) bool {
		return !slices.Contains(names, s.flag)
	})
}

// load reads the named settings; without names, all. Its error names every mistake.
func (p *program) load(c *cli.Command, names ...string) (settings, error) {
	var result settings
	var errs []error
	for _, s := range selected(names) {
		v := p.choose(c, s)
		if v.value == "" {
			if v.source == "--"+s.flag {
				errs = append(errs, fmt.Errorf("%s is empty: leave it out, or give it a value", v.source))
			}
			continue
		}
		if s.flag == "admin-addr" {
			result.app.AdminOptional = v.source == byDefault // a second process on this host can do without
		}
		if s.flag == "api-addr" {
			result.apiByDefault = v.source == byDefault
		}
		if err := s.parse(&result, v.value); err != nil {
			said := "is " + quoted(v.value)
			if s.show != nil {
				said = "is not acceptable" // without showing it
			}
			errs = append(errs, fmt.Errorf("%s %s: %w", v.source, said, err))
		}
	}
	if len(errs) > 0 {
		return settings{}, &usageError{errors.Join(errs...)}
	}
	return result, nil
}

// directions are the settings that determine which database or API a command is about, and as whom. An empty one on the
// command line, such as --database-url "$STAGING_URL" with the variable unset, is a mistake, even for serve: treated as
// absent, it would make the command act on what the environment names.
var directions = []string{"database-url", "api", "token"}

// choose takes the flag before the environment before the default. An empty variable counts as absent, and so does an
// empty flag, unless it is one of the directions.
func (p *program) choose(c *cli.Command, s setting) chosen {
	if c.IsSet(s.flag) {
		value := c.String(s.flag)
		if s.flag == "webhook" {
			value = strings.Join(c.StringSlice(s.flag), ",")
		}
		if value != "" || slices.Contains(directions, s.flag) {
			return chosen{s, value, "--" + s.flag}
		}
	}
	for _, name := range s.envs {
		if value := p.getenv(name); value != "" {
			return chosen{s, value, name}
		}
	}
	return chosen{s, s.fallback, byDefault}
}

var errNoDatabase = errors.New("no database: set DATABASE_URL or pass --database-url")

// requireDatabase returns a usage error if no database is set, for commands that need one.
func requireDatabase(s settings) error {
	if s.app.DatabaseURL == "" {
		return &usageError{errNoDatabase}
	}
	return nil
}
