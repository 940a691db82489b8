// Command natsdev is a NATS server with JetStream for tests: the real one, in a process of its own that can be killed.
//
//	natsdev -port 4222 -store DIR [-sync-always] [-config FILE]
//
// FILE is a configuration of nats-server, with users and TLS for instance; SIGHUP reads it again. Flags win over it.
package main

import (
	"flag"
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
	var flags server.Options
	flag.StringVar(&flags.Host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&flags.Port, "port", server.DEFAULT_PORT, "port to listen on")
	flag.StringVar(&flags.StoreDir, "store", "", "directory of JetStream's files")
	flag.BoolVar(&flags.SyncAlways, "sync-always", false, "fsync every message before its acknowledgement")
	config := flag.String("config", "", "configuration of nats-server")
	flag.Parse()
	flags.JetStream = true

	opts := &flags
	if *config != "" {
		file, err := server.ProcessConfigFile(*config)
		if err != nil {
			return err
		}
		opts = server.MergeOptions(file, &flags)
		opts.JetStream, opts.SyncAlways = true, flags.SyncAlways
		server.FlagSnapshot = flags.Clone() // what a reload leaves as it is
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
