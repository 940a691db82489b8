package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/docs/site"
)

func (p *program) docsCommand() *cli.Command {
	return &cli.Command{
		Name:      "docs",
		Usage:     "serve the manual that this build embeds, or print a page of it",
		ArgsUsage: "[PAGE]",
		Description: `Without PAGE it serves the manual as a web site until Ctrl-C; the site loads nothing from
elsewhere. With PAGE it prints that page as Markdown: "posthaste docs operate/operations".
"posthaste docs index" lists the pages. Processes that serve the API or the console also
serve the manual below /manual/ of that address.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "addr", Value: "127.0.0.1:8089", Usage: "`HOST:PORT` to serve it on"}},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 1); err != nil {
				return err
			}
			if c.NArg() == 0 {
				if _, err := parseAddr(c.String("addr")); err != nil {
					return usagef("--addr is %q: want HOST:PORT like 127.0.0.1:8089", c.String("addr"))
				}
				return p.serveDocs(ctx, c.String("addr"))
			}
			text, err := site.Page(strings.TrimPrefix(c.Args().First(), "/"))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
				return usagef("the manual has no page %q: posthaste docs index lists them", c.Args().First())
			}
			if err != nil {
				return err
			}
			_, err = p.stdout.Write(text)
			return err
		},
	}
}

func (p *program) serveDocs(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, _ = app.Signals(ctx)
	fmt.Fprintf(p.stdout, "open http://%s%s\n", reachable(ln.Addr().String()), site.Base)
	server := &http.Server{
		Handler: site.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
		WriteTimeout: 30 * time.Second,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
