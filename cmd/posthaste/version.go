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
		Flags: []cli.Flag{outputFlag()},
		Action: func(_ context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			revision, modified := commit()
			if c.String("output") != "table" {
				l := listing{header: []string{"version", "commit", "modified", "go", "os", "arch"}}
				l.add(buildVersion(), textOrNull(revision), modified, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return p.print(c, l)
			}
			about := ""
			if revision != "" {
				about = fmt.Sprintf(" (%.12s%s)", revision, map[bool]string{true: ", modified"}[modified])
			}
			fmt.Fprintf(p.stdout, "posthaste %s%s, %s %s/%s\n", buildVersion(), about, runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return nil
		},
	}
}

// commit returns the commit of the build, "" if it is not known, and whether the tree had changes beyond it.
func commit() (revision string, modified bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return revision, modified
}
