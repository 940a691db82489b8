package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// withVerb inserts the word that a command line may leave out: "posthaste workers -o json" means "posthaste workers
// list -o json", and --version means version.
func withVerb(root *cli.Command, args []string) []string {
	if len(args) < 2 {
		return args
	}
	if args[1] == "--version" {
		return slices.Concat(args[:1], []string{"version"}, args[2:])
	}
	group := root.Command(args[1])
	if group == nil || !lists(group) {
		return args
	}
	if len(args) > 2 && (!strings.HasPrefix(args[2], "-") ||
		slices.Contains([]string{"-h", "--help", "--generate-shell-completion"}, args[2])) {
		return args
	}
	return slices.Concat(args[:2], []string{"list"}, args[2:])
}

// lists reports whether a command has no action of its own but a list.
func lists(c *cli.Command) bool { return c.Action == nil && c.Command("list") != nil }

// finish applies common conventions to every command.
func finish(c *cli.Command) {
	c.OnUsageError = func(_ context.Context, c *cli.Command, err error, _ bool) error {
		if text := err.Error(); strings.HasSuffix(text, "-api") || strings.HasSuffix(text, "-token") { // is not defined
			return usagef("%s: %s", flagMistake(c, err), notThroughAPI)
		}
		return usagef("%s (see %s --help)", flagMistake(c, err), c.FullName())
	}
	if c.Action != nil { // "queues limit mail --help" takes mail for a command to show help of
		c.CommandNotFound = func(_ context.Context, c *cli.Command, _ string) { showOwnHelp(c) }
	}
	if lists(c) {
		c.Description = strings.TrimPrefix(c.Description+"\n\nWithout a command it does what \""+c.Name+" list\" does.", "\n\n")
	}
	for _, flag := range c.Flags {
		switch f := flag.(type) { // numbers are decimal: 010 is ten, and 0x10 is refused; 0 stands for no default
		case *cli.IntFlag:
			f.Config.Base, f.HideDefault = 10, f.Value == 0
		case *cli.Int64Flag:
			f.Config.Base, f.HideDefault = 10, f.Value == 0
		}
	}
	action := c.Action
	if action == nil {
		action = chooseSubcommand
	}
	c.Action = func(ctx context.Context, c *cli.Command) error {
		if err := refuseMisplaced(c); err != nil {
			return err
		}
		if err := refuseEmpty(c); err != nil {
			return err
		}
		return action(ctx, c)
	}
	for _, sub := range c.Commands {
		finish(sub)
	}
}

// showOwnHelp prints what --help alone prints.
func showOwnHelp(c *cli.Command) {
	template := cli.CommandHelpTemplate
	if len(c.VisibleCommands()) > 0 {
		template = cli.SubcommandHelpTemplate
	}
	cli.HelpPrinter(c.Root().Writer, template, c)
}

// refuseEmpty refuses flags without a value, such as --key "$UNSET": treating such a flag as absent would drop an
// order, or a filter of an act. For settings, choose decides.
func refuseEmpty(c *cli.Command) error {
	for _, flag := range c.Flags {
		name := flag.Names()[0]
		if isSetting(flag) || !flag.IsSet() {
			continue
		}
		value := fmt.Sprint(flag.Get())
		if list, ok := flag.Get().([]string); ok && (len(list) == 0 || slices.Contains(list, "")) {
			value = ""
		}
		if value == "" {
			return usagef("--%s is empty: leave it out, or give it a value", name)
		}
	}
	return nil
}

// isSetting reports whether a flag is one of those that the environment may set: "jobs list" has a --worker of its own.
func isSetting(flag cli.Flag) bool {
	documented, ok := flag.(cli.DocGenerationFlag)
	return ok && strings.Contains(documented.GetUsage(), "[$")
}

// refuseMisplaced refuses flags before the name of a subcommand, as in "audit --database-url URL verify": the flags are
// audit's, and verify ignores them.
func refuseMisplaced(c *cli.Command) error {
	for _, outer := range c.Lineage()[1:] {
		for _, flag := range outer.Flags {
			if text, ok := flag.(*cli.StringFlag); ok && len(text.Sources.Chain) > 0 {
				continue // which the environment may have set
			}
			if flag.IsSet() {
				return usagef("--%s is before %s, which does not look at it: flags of %s go behind its name",
					flag.Names()[0], c.Name, c.FullName())
			}
		}
	}
	return nil
}

// chooseSubcommand acts for a command that only groups others: it shows the help of the root command, and returns a
// usage error for any other and for an unknown subcommand.
func chooseSubcommand(_ context.Context, c *cli.Command) error {
	if first := c.Args().First(); first != "" {
		return usagef("%s has no command %q%s (see %s --help)", c.FullName(), first, didYouMean(first, commandNames(c)),
			c.FullName())
	}
	if c.Root() == c {
		return cli.ShowRootCommandHelp(c)
	}
	return usagef("%s needs a command: want one of %s", c.FullName(), strings.Join(commandNames(c), ", "))
}

func commandNames(c *cli.Command) (names []string) {
	for _, sub := range c.Commands {
		if !sub.Hidden && sub.Name != "help" {
			names = append(names, sub.Name)
		}
	}
	return names
}
