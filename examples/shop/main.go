// Command shop is an example: a shop whose orders each cause two jobs, a receipt
// and a stock reservation, and a demonstration that every order has both effects
// exactly once although a worker is killed in the middle.
//
//	shop demo      sets everything up, runs the demonstration and cleans up
//	shop worker    works off the jobs of the database in DATABASE_URL
//
// Three files are the shop, and show how to arrange such a program: place.go
// (a business transaction that enqueues), handle.go (idempotent handlers) and
// worker.go (a process that runs them). The others are the demonstration; its
// story is in demo.go, its proof in check.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
)

const usage = `usage:
  shop demo [--stay] [--orders N] [--for D] [--lease-ttl D]
  shop worker [--name NAME] [--admin ADDR] [--lease-ttl D]
`

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "demo":
		err = runDemo(context.Background(), args)
	case "worker":
		err = runWorker(context.Background(), args)
	default:
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	case errors.Is(err, errInterrupted):
		return 130
	}
	fmt.Fprintf(os.Stderr, "shop %s: %v\n", command, err)
	return 1
}
