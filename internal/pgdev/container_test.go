package pgdev

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// playDocker puts a fake docker command first in PATH, where there is no npm. Its containers are the server at address.
// The function that it returns returns the fake's arguments so far.
func playDocker(t *testing.T, address string) (asked func() string) {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%[1]s/asked\ncase $1 in port) echo %[2]s;; inspect) echo %[3]t;; logs) echo its last words;; esac\n",
		dir, address, address != "")
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("PG_BIN", t.TempDir())                // and pgdev looks nowhere else
	cache, err := os.MkdirTemp("", "pgdev-cache-") // not in t.TempDir, which is out of reach for the server's account
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(cache) })
	if err := os.Chmod(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache) // macOS knows no XDG_CACHE_HOME
	return func() string {
		content, err := os.ReadFile(filepath.Join(dir, "asked"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
}

func TestAContainerIsTheLastWay(t *testing.T) {
	running := start(t, Options{Fast: true})
	at, err := url.Parse(running.URL())
	if err != nil {
		t.Fatal(err)
	}
	asked := playDocker(t, at.Host)
	if s, err := Start(t.Context(), Options{}); err == nil {
		t.Errorf("started %s, want no container for a caller that does not ask for one", s)
	}
	s := start(t, Options{Fast: true, Container: true})
	if got, want := s.String(), "PostgreSQL "+running.Version()+" (container)"; got != want {
		t.Errorf("started %s, want %s", got, want)
	}
	if got := asked(); !strings.Contains(got, "-c fsync=off") {
		t.Errorf("docker was asked\n%s\nwant the settings of a fast server", got)
	}
	if strings.Contains(asked(), "rm --force") {
		t.Error("the container was removed while it was in use")
	}
	if err := s.Stop(); err != nil || !strings.Contains(asked(), "rm --force") {
		t.Errorf("Stop = %v, docker was asked\n%s\nwant that the container is removed", err, asked())
	}
}

func TestAContainerOfNoUseIsRemoved(t *testing.T) {
	running := start(t, Options{Fast: true})
	at, err := url.Parse(running.URL())
	if err != nil {
		t.Fatal(err)
	}
	other := "18"
	if strings.HasPrefix(running.Version(), "18") {
		other = "17"
	}
	for name, test := range map[string]struct{ address, major, want string }{
		"it ended":            {"", "", "its last words"},
		"another one's image": {at.Host, other, "want " + other},
	} {
		t.Run(name, func(t *testing.T) {
			asked := playDocker(t, test.address)
			_, err := Start(t.Context(), Options{Major: test.major, Container: true})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(asked(), "rm --force") {
				t.Errorf("Start = %v, docker was asked\n%s\nwant an error like %q and that the container is removed", err, asked(), test.want)
			}
		})
	}
}

// TestContainerOfARealEngine needs an engine (make test-docker). Without one, it checks that startContainer fails
// quickly.
func TestContainerOfARealEngine(t *testing.T) {
	options := Options{Fast: true, Settings: map[string]string{"max_connections": "37"}, Log: t.Output()}
	begin := time.Now()
	s, err := options.startContainer(t.Context())
	if err != nil {
		if _, noEngine := docker(t.Context(), "version"); noEngine == nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > engineTimeout+2*time.Second {
			t.Errorf("it took %s to find no engine, want at most about %s", took, engineTimeout)
		}
		t.Log("no container was started, for want of an engine: ", err)
		return
	}
	if got := query(t, s.URL(), "SHOW max_connections"); got != "37" {
		t.Errorf("max_connections = %q, want 37", got)
	}
	if err := s.Stop(); err != nil || connects(s.URL()) {
		t.Errorf("after Stop, %v, somebody still answers, want nobody", err)
	}
	options.Settings = map[string]string{"no_such_setting": "1"}
	if s, err = options.startContainer(t.Context()); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("startContainer = %v, %v, want the server's own words", s, err)
	}
}
