package pgdev

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/freeport"
)

var background = context.Background()

// start calls Start for a test, which it fails on an error. The end of the test stops the server.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	o.Log = t.Output()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var got string
	if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func connects(url string) bool {
	ctx, cancel := context.WithTimeout(background, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		conn.Close(ctx)
	}
	return err == nil
}

// await waits for something that another process does.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute in vain until %s", what)
		}
	}
}

func TestDurabilityIsGivenUpOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	few := Options{Fast: true, Settings: map[string]string{"max_connections": "20"}}
	names := []string{"fsync", "synchronous_commit", "full_page_writes", "max_connections"}
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"by default everything is durable": {Options{}, "on on on 200"},
		"fast gives up fsync":              {Options{Fast: true}, "off on off 500"},
		"the caller's settings win":        {few, "off on off 20"},
	} {
		var values []string
		for _, setting := range names {
			values = append(values, test.options.settings()[setting])
		}
		if got := strings.Join(values, " "); got != test.want {
			t.Errorf("%s: settings = %s, want %s", name, got, test.want)
		}
	}
	// A running server has them.
	got := query(t, start(t, few).URL(), `SELECT string_agg(current_setting(name), ' ' ORDER BY at) FROM unnest('{`+strings.Join(names, ",")+`}'::text[]) WITH ORDINALITY AS t (name, at)`)
	if want := "off on off 20"; got != want {
		t.Errorf("settings of the server = %s, want %s", got, want)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Fast: true})
	if got, want := query(t, s.URL(), "SHOW server_version"), s.Version(); !strings.HasPrefix(got, want) {
		t.Errorf("server_version = %s, want %s", got, want)
	}
	if got := query(t, s.SocketURL(), "SELECT coalesce(host(inet_server_addr()), 'socket')"); got != "socket" {
		t.Errorf("SocketURL leads to %s, want the socket", got)
	}
	for range 2 { // safe twice
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if connects(s.URL()) {
		t.Error("the server answers after Stop")
	}
	if _, err := os.Stat(s.cluster.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder: %v, want that it is gone", err)
	}
	if err := s.Restart(t.Context(), Fast); err == nil {
		t.Error("a stopped server was restarted")
	}
}

func TestAKeptFolderKeepsItsData(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp("", "pgdev-test-") // t.TempDir cannot be entered by another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: parent + "/pg"}

	first := start(t, o)
	if err := exec1(t.Context(), first.URL(), "CREATE TABLE kept AS SELECT 'yes' AS answer"); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second Start on the same folder = %v, want that it is in use", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, o)
	if got := query(t, again.URL(), "SELECT answer FROM kept"); got != "yes" {
		t.Errorf("answer = %q, want yes", got)
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
	o.Major = "18"
	if strings.HasPrefix(first.Version(), "18") {
		o.Major = "17"
	}
	if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "holds data of PostgreSQL") {
		t.Errorf("Start of %s on data of %s = %v, want a refusal", o.Major, first.Version(), err)
	}
}

func TestCommittedDataSurvivesRestartAndCrash(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	if err := exec1(t.Context(), s.URL(), "CREATE TABLE survived (what text)"); err != nil {
		t.Fatal(err)
	}
	crashes := map[string]func() error{
		"fast":      func() error { return s.Restart(t.Context(), Fast) },
		"immediate": func() error { return s.Restart(t.Context(), Immediate) },
		"kill -9": func() error {
			if err := s.Kill9(); err != nil {
				return err
			}
			if connects(s.URL()) {
				t.Error("the server answers after Kill9")
			}
			return errors.Join(s.StartAgain(t.Context()), s.StartAgain(t.Context())) // the second does nothing
		},
	}
	for name, crash := range crashes {
		busy, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		slept := make(chan error, 1)
		go func() {
			_, err := busy.Exec(background, "SELECT pg_sleep(60)")
			slept <- err
		}()
		if err := exec1(t.Context(), s.URL(), fmt.Sprintf("INSERT INTO survived VALUES ('%s')", name)); err != nil {
			t.Fatal(err)
		}
		url := s.URL()
		if err := crash(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.URL() != url {
			t.Errorf("%s: URL = %s, want the same as before, %s", name, s.URL(), url)
		}
		if err := <-slept; err == nil {
			t.Errorf("%s: a session outlived it", name)
		}
		if got := query(t, s.URL(), fmt.Sprintf("SELECT count(*)::text FROM survived WHERE what = '%s'", name)); got != "1" {
			t.Errorf("%s: %s rows survived, want 1", name, got)
		}
	}
	if err := s.Restart(t.Context(), "smart"); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestAServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PGDEV_TEST_HOLD=1")
	parent.Stderr = t.Output()
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	var url, path string
	var pid int
	if _, err := fmt.Sscan(line, &url, &pid, &path); err != nil {
		t.Fatalf("the parent said %q: %v", line, err)
	}
	if !connects(url) {
		t.Fatal("the server does not answer")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	await(t, "the server is gone", func() bool {
		server, err := os.FindProcess(pid)
		return (err != nil || server.Signal(syscall.Signal(0)) != nil) && !connects(url)
	})

	// Its folder still exists, and the next Start a minute later removes it.
	old := time.Now().Add(-2 * time.Minute)
	if err := os.Chtimes(path+"/lock", old, old); err != nil {
		t.Fatal(err)
	}
	start(t, Options{Fast: true})
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the dead: %v, want that it is gone", err)
	}
}

func TestAGivenServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	owned := start(t, Options{Fast: true})
	given := start(t, Options{DatabaseURL: owned.URL(), Major: "ignored"})
	for name, err := range map[string]error{
		"Restart":    given.Restart(t.Context(), Fast),
		"Kill9":      given.Kill9(),
		"StartAgain": given.StartAgain(t.Context()),
	} {
		if !errors.Is(err, ErrNotOwned) {
			t.Errorf("%s = %v, want ErrNotOwned", name, err)
		}
	}
	if err := given.Stop(); err != nil {
		t.Fatal(err)
	}
	if !connects(owned.URL()) {
		t.Error("Stop ended a server that was given")
	}
}

func TestATakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port

	f, err := openFolder(Options{})
	if err != nil {
		t.Fatal(err)
	}
	bin, err := localBinaries(t.Context(), "", f.account)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{folder: f, bin: bin, fixedPort: true, pickPort: func() (int, error) { return taken, nil }}
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Error(err)
		}
	})
	if err := c.initialize(t.Context(), Options{Fast: true}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := c.start(t.Context()); err == nil || !portTaken(err) {
		t.Errorf("start on a taken port = %v, want that it is in use", err)
	}
	if took := time.Since(begin); took > retryTimeout {
		t.Errorf("it took %s to say so", took)
	}

	// If the port is taken between choosing and starting, another is chosen.
	ports := []int{taken}
	c.fixedPort, c.pickPort = false, func() (int, error) {
		if len(ports) > 0 {
			port := ports[0]
			ports = ports[1:]
			return port, nil
		}
		return freeport.Pick()
	}
	if err := c.start(t.Context()); err != nil {
		t.Error(err)
	}
	if c.port == taken {
		t.Error("the server claims a port that is not its own")
	}
}

func TestTheSearchEndsWithRemedies(t *testing.T) {
	t.Parallel()
	err := Options{Major: "16", Container: true}.notFound([]error{errors.New("npm: not installed")})
	for _, want := range []string{"DATABASE_URL", "apt-get install postgresql-16", "Docker", "npm: not installed"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error = %q, want it to name %s", err, want)
		}
	}
	if _, err := Start(t.Context(), Options{Major: "9"}); err == nil {
		t.Error("PostgreSQL 9 was started")
	}
}
