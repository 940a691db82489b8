// Command natsdev is a NATS server with JetStream for tests: the real one, in a process of its own that can be killed.
//
//	natsdev FILE
//
// FILE is a configuration of nats-server. SIGHUP reads it again.
package main

import (
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: natsdev FILE")
	}
	opts, err := server.ProcessConfigFile(os.Args[1])
	if err != nil {
		return err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
