package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

var (
	posthaste string          // the program
	browser   context.Context // the one of all tests; each has a context of its own in it, with its own cookies
)

// planted is set by make mutants.
var planted = flag.Bool("planted", false, "also serve the console's scripts with a line taken out, each in turns: the check of that line has to fail")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	chromium := findChromium()
	if chromium == "" {
		fmt.Println("browsertest: no chromium on the PATH (apt-get install chromium): the console is not looked at in a browser")
		if os.Getenv("POSTHASTE_BROWSER") == "required" {
			return 1
		}
		return 0
	}
	dir, err := os.MkdirTemp("", "posthaste-browser")
	if err != nil {
		fmt.Fprintln(os.Stderr, "browsertest:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if posthaste, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "browsertest:", err)
		return 1
	}
	var stop func()
	if browser, stop, err = startBrowser(chromium, filepath.Join(dir, "profile")); err != nil {
		fmt.Fprintln(os.Stderr, "browsertest: start the browser:", err)
		return 1
	}
	defer stop()
	if *screenshots != "" {
		stop, err := lasting()
		if err != nil {
			fmt.Fprintln(os.Stderr, "browsertest: start Postgres:", err)
			return 1
		}
		defer func() { _ = stop() }()
	}
	return pgtest.Wrap(m).Run()
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func build(dir string) (string, error) {
	out := filepath.Join(dir, "posthaste")
	cmd := exec.Command("go", "build", "-ldflags=-w", "-o", out, "./cmd/posthaste")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return out, cmd.Run()
}

func startBrowser(chromium, profile string) (started context.Context, stop func(), err error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.DisableGPU, chromedp.UserDataDir(profile),
		chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // root has none
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	started, _ = chromedp.NewContext(allocator)
	if err := chromedp.Do(started); err != nil {
		stopAllocator()
		return nil, nil, err
	}
	return started, func() {
		_ = chromedp.Cancel(started) // it is asked to end, and waited for
		stopAllocator()
	}, nil
}
