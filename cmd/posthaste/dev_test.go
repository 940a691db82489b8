package main

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var opens = regexp.MustCompile(`open (http://\S+/console/)`)

// freeAddr returns an address of this machine at which nothing listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

// developing starts dev on a database of its own. It stops when the test ends.
func developing(t *testing.T, args ...string) (out, logs *lockedBuffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "posthaste-dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil { // root lets another account run Postgres
		t.Fatal(err)
	}
	out, logs = new(lockedBuffer), new(lockedBuffer)
	args = append([]string{"dev", "--data", filepath.Join(folder, "data"), "--admin-addr", "off"}, args...)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL=")
	cmd.Stdout, cmd.Stderr = out, logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // so that it stops its Postgres
		if err := cmd.Wait(); err != nil {
			t.Errorf("dev ended with %v", err)
		}
		if t.Failed() {
			t.Logf("the logs of dev:\n%s", logs)
		}
	})
	return out, logs
}

// Nobody signs in to the console of dev, at the URL that it prints; those who come by another name, as the pages of a
// hostile site do once its name leads to this machine, are not let in.
func TestDevPrintsTheURLOfAConsoleWithoutALogin(t *testing.T) {
	t.Parallel()
	out, logs := developing(t, "--api-addr", freeAddr(t))
	awaitText(t, "Ctrl-C stops it", out.String)
	awaitText(t, "API listens", logs.String)
	printed := opens.FindStringSubmatch(out.String())
	if printed == nil {
		t.Fatalf("dev prints no URL of its console: %s", out)
	}
	for host, let := range map[string]bool{"": true, "shop.example": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, printed[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		client := &http.Client{CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			r.Host = host
			return nil
		}}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		in := res.StatusCode == http.StatusOK && strings.Contains(string(page), "<h1>Problems</h1>")
		if in != let || in && !strings.HasSuffix(res.Request.URL.Path, "/console/problems") {
			t.Errorf("as host %q it answers with %d at %s, want the page of problems: %t\n%.500s",
				host, res.StatusCode, res.Request.URL, let, page)
		}
	}
}
