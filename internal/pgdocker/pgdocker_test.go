package pgdocker

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain can also play a program that needs a container and prints why it got none: testcontainers looks for an
// engine once per process.
func TestMain(m *testing.M) {
	if os.Getenv("PGDOCKER_TEST_WANT") == "" {
		os.Exit(m.Run())
	}
	_, stop, err := Start(context.Background(), "", nil)
	if err == nil {
		stop()
	}
	fmt.Println("got:", err)
}

func TestStartFailsSoonWhenTheEngineHangs(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	program := exec.CommandContext(t.Context(), os.Args[0])
	program.Env = append(os.Environ(), "PGDOCKER_TEST_WANT=1", "HOME="+t.TempDir(), "DOCKER_HOST=tcp://"+hung.Addr().String())
	begin := time.Now()
	out, err := program.CombinedOutput()
	if took := time.Since(begin); took > engineTimeout+5*time.Second {
		t.Errorf("Start took %s with an engine that hangs, want about %s", took, engineTimeout)
	}
	if got, want := string(out), "got: no engine answers"; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("output = %q, %v, want %q …", got, err, want)
	}
}

// TestStart needs an engine (make test-docker). Without one, it checks that Start fails quickly.
func TestStart(t *testing.T) {
	begin := time.Now()
	url, stop, err := Start(t.Context(), "", map[string]string{"max_connections": "37"})
	if err != nil && engine(t.Context()) != nil {
		if took := time.Since(begin); took > engineTimeout+time.Second {
			t.Errorf("Start took %s to find no engine, want at most about %s", took, engineTimeout)
		}
		t.Log("no container was started, for want of an engine: ", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if got := show(t, url, "max_connections"); got != "37" {
		t.Errorf("max_connections = %q, want 37", got)
	}
	if err := answers(t.Context(), url, "somebody else"); err == nil {
		t.Error("another server was taken for ours")
	}
	t.Run("stop ends it", func(t *testing.T) {
		stop()
		if err := answers(t.Context(), url, ""); err == nil || strings.Contains(err.Error(), "another") {
			t.Errorf("after stop: %v, want that nobody answers", err)
		}
	})
	t.Run("at an address that testcontainers does not know", func(t *testing.T) {
		t.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "engine.invalid")
		url, stop, err := Start(t.Context(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if got := show(t, url, "cluster_name"); !strings.HasPrefix(got, "posthaste-") {
			t.Errorf("cluster_name = %q, want ours", got)
		}
	})
	t.Run("a server that ends is reported at once", func(t *testing.T) {
		begin := time.Now()
		_, _, err := Start(t.Context(), "", map[string]string{"no_such_setting": "1"})
		if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
			t.Errorf("Start = %v, want the server's own words", err)
		}
		if took := time.Since(begin); took > readyTimeout/2 {
			t.Errorf("it took %s to say so", took)
		}
	})
}

func show(t *testing.T, url, setting string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "SHOW "+setting).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}
