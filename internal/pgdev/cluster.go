package pgdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/freeport"
)

const (
	startTimeout = 2 * time.Minute  // recovery after a crash included
	retryTimeout = 15 * time.Second // for a predecessor that has not quite ended
	stopTimeout  = 30 * time.Second
	socketLimit  = 100 // bytes of path that every system allows for a socket
)

// cluster is an owned server: a folder, binaries and, while the server runs, a process.
type cluster struct {
	*folder
	bin       string
	env       []string
	pickPort  func() (int, error) // for the first start
	fixedPort bool                // pickPort always returns the same port
	port      int                 // 0 until the server has run, then kept, because clients know it
	process   *process
}

func startOwned(ctx context.Context, o Options, f *folder, bin, origin string) (*Server, error) {
	c := &cluster{folder: f, bin: bin, env: o.Env, pickPort: freeport.Pick}
	if o.Port != 0 {
		c.pickPort, c.fixedPort = func() (int, error) { return o.Port, nil }, true
	}
	if err := c.initialize(ctx, o); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	version, err := serverVersion(ctx, localURL(c.port))
	if err != nil {
		return nil, errors.Join(err, c.halt(syscall.SIGQUIT))
	}
	s := &Server{url: localURL(c.port), version: version, origin: origin, cluster: c}
	if dir := c.socketDir(); dir != "" {
		s.socketURL = fmt.Sprintf("postgres://postgres@/postgres?host=%s&port=%d", url.QueryEscape(dir), c.port)
	}
	return s, nil
}

func localURL(port int) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
}

// socketDir returns the folder of the socket, or "" if the socket's path would be too long.
func (c *cluster) socketDir() string {
	if runtime.GOOS == "windows" || len(filepath.Join(c.path, ".s.PGSQL.65535")) > socketLimit {
		return ""
	}
	return c.path
}

// initialize writes the settings, and creates the data directory if there is none. It works in a folder beside the
// final one, so that an interrupted initdb leaves nothing that looks like data.
func (c *cluster) initialize(ctx context.Context, o Options) error {
	settings := filepath.Join(c.data(), "posthaste.conf")
	if _, err := os.Stat(c.data()); err == nil {
		return os.WriteFile(settings, []byte(conf(o.settings())), 0o644)
	}
	fresh := c.data() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if !c.copyInitial(ctx, fresh) {
		args := []string{"-D", fresh, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"}
		if c.temporary || o.Fast {
			args = append(args, "--no-sync")
		}
		if out, err := c.command(ctx, "initdb", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w%s", err, indent(out))
		}
	}
	if o.KeepInitial {
		if err := c.copy(ctx, fresh, c.initial()); err != nil {
			return err
		}
	}
	main, err := os.OpenFile(filepath.Join(fresh, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(main, "\ninclude 'posthaste.conf'\n")
	if err := errors.Join(err, main.Close(), os.Rename(fresh, c.data())); err != nil {
		return err
	}
	return os.WriteFile(settings, []byte(conf(o.settings())), 0o644)
}

// command returns a program of Postgres, which runs as the right user, in a folder that this user can enter, and
// without settings meant for clients.
func (c *cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program(c.bin, name), args...)
	cmd.Dir = c.path
	cmd.Env = []string{"LC_ALL=C"} // messages are read below
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, c.env...)
	cmd.SysProcAttr = c.account.attributes()
	return cmd
}

// start runs the server and returns when it answers. It retries with another port if another process took the one that
// it had picked. It retries with the same port, for at most retryTimeout, if a predecessor that was just killed still
// holds the port or the shared memory.
func (c *cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var failed time.Time // when the first try had failed: a try itself may take long
	for {
		port := c.port
		if port == 0 {
			var err error
			if port, err = c.pickPort(); err != nil {
				return err
			}
		}
		err := c.startOnce(ctx, port)
		if err == nil {
			c.port = port
			return nil
		}
		if failed.IsZero() {
			failed = time.Now()
		}
		another := portTaken(err) && c.port == 0 && !c.fixedPort
		same := (heldByPredecessor(err) || portTaken(err) && c.port != 0) && time.Since(failed) < retryTimeout
		if ctx.Err() != nil || !another && !same {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func portTaken(err error) bool {
	return strings.Contains(err.Error(), "Address already in use")
}

func heldByPredecessor(err error) bool {
	return strings.Contains(err.Error(), `lock file "postmaster.pid" already exists`) ||
		strings.Contains(err.Error(), "is still in use")
}

func (c *cluster) startOnce(ctx context.Context, port int) error {
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	// The server outlives ctx, which bounds only its start.
	cmd := c.command(context.WithoutCancel(ctx), "postgres", "-D", c.data(), "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+c.socketDir())
	cmd.Stdout, cmd.Stderr = log, log
	if c.process, err = launch(cmd); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	if err := c.awaitReady(ctx, port); err != nil {
		return errors.Join(fmt.Errorf("%w%s", err, indent(tail(c.log(), before))), c.halt(syscall.SIGQUIT))
	}
	return nil
}

// awaitReady returns when our server answers queries. Another server that took the port would answer, too, or make us
// wait: so awaitReady checks the data directory, and gives up when our process has ended.
func (c *cluster) awaitReady(ctx context.Context, port int) error {
	alive, cancel := context.WithCancel(ctx)
	defer cancel()
	done := c.process.done
	go func() {
		select {
		case <-done:
			cancel()
		case <-alive.Done():
		}
	}()
	for !c.answers(alive, port) {
		select {
		case <-done:
			return fmt.Errorf("postgres ended at once: %w", endOf(c.process.err))
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w", context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (c *cluster) answers(ctx context.Context, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, localURL(port))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var dir string
	err = conn.QueryRow(ctx, "SHOW data_directory").Scan(&dir)
	return err == nil && filepath.Clean(dir) == c.data()
}

// halt signals the server and waits for its end, with stronger signals if necessary.
func (c *cluster) halt(sig syscall.Signal) error {
	p := c.process
	if p == nil {
		return nil
	}
	for _, s := range []syscall.Signal{sig, syscall.SIGQUIT, syscall.SIGKILL} {
		select {
		case <-p.done:
			return nil
		default:
		}
		if err := p.signal(c.bin, s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("signal postgres: %w", err)
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(stopTimeout):
		}
	}
	return fmt.Errorf("postgres (pid %d) does not end", p.cmd.Process.Pid)
}

// remove ends the server for good. If its data are temporary, it skips the checkpoint.
func (c *cluster) remove() error {
	sig := syscall.SIGINT
	if c.temporary {
		sig = syscall.SIGQUIT
	}
	return errors.Join(c.halt(sig), c.close())
}
