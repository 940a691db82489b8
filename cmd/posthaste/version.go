package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"
)

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version = ""

// buildVersion returns the release's version, or what Go knows of the build.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version, the commit and the platform of this build",
		Action: func(_ context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			fmt.Fprintf(p.stdout, "posthaste %s%s, %s %s/%s\n", buildVersion(), commit(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// commit returns the commit of the build, if known.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var revision, modified string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision == "" {
		return ""
	}
	return fmt.Sprintf(" (%.12s%s)", revision, modified)
}
