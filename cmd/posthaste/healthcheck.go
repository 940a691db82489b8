package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
)

func (p *program) healthcheckCommand() *cli.Command {
	return &cli.Command{
		Name:  "healthcheck",
		Usage: "check that a running process is ready (for containers: exit status 0 or 1)",
		Flags: append(flags("admin-addr"),
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Second, Usage: "how long to wait for the response"}),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			s, err := p.load(c, "admin-addr")
			if err != nil {
				return err
			}
			if s.app.AdminAddr == "" {
				return usagef("the admin address is off: there is nobody to ask")
			}
			ctx, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
			defer cancel()
			return p.healthcheck(ctx, reachable(s.app.AdminAddr))
		},
	}
}

func (p *program) healthcheck(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true} // directly to the process, never through a proxy
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", addr, err)
	}
	defer res.Body.Close()
	var report app.Report
	if res.StatusCode == http.StatusSwitchingProtocols { // the body is the connection, which no context closes
		return fmt.Errorf("%s answered %s", addr, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&report); err != nil {
		return fmt.Errorf("%s answered %s with something else than a readiness report", addr, res.Status)
	}
	fmt.Fprintln(p.stdout, report.Status)
	for _, name := range slices.Sorted(maps.Keys(report.Components)) {
		state := report.Components[name]
		fmt.Fprintf(p.stdout, "  %-10s %s", name, state.State)
		if state.Detail != "" {
			fmt.Fprintf(p.stdout, " (%s)", strings.Join(strings.Fields(state.Detail), " "))
		}
		fmt.Fprintln(p.stdout)
	}
	if res.StatusCode != http.StatusOK || !report.Ready() {
		return fmt.Errorf("%s is %s", addr, report.Status)
	}
	return nil
}

// reachable returns the address at which a process that listens on all addresses of this host is reached from this
// host.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
