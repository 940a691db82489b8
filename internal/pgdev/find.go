package pgdev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// installations are the folders into which packages and installers put the binaries of each version.
var installations = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // Red Hat
	"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew on Apple silicon
	"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew on Linux
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/Library/PostgreSQL/*/bin",                          // EDB on macOS
	`C:\Program Files\PostgreSQL\*\bin`,                  // EDB on Windows
}

// localBinaries returns the folder of an installed Postgres that a may run: the first of PG_BIN, PATH and the
// installations, newest first, that has the version.
func localBinaries(ctx context.Context, major string, a *account) (string, error) {
	var seen []string
	for _, dir := range candidates() {
		got, err := binariesMajor(ctx, dir)
		switch {
		case err != nil && dir == os.Getenv("PG_BIN"):
			return "", fmt.Errorf("PG_BIN: %w", err)
		case err != nil:
			continue
		case !slices.Contains(majors, got) || major != "" && got != major:
			seen = append(seen, fmt.Sprintf("%s has %s", dir, got))
		case !a.reaches(dir):
			seen = append(seen, fmt.Sprintf("%s is out of reach of user %s", dir, a.name))
		default:
			return dir, nil
		}
	}
	if seen == nil {
		return "", errors.New("local binaries: none in PATH or the usual folders")
	}
	return "", fmt.Errorf("local binaries: %s", strings.Join(seen, "; "))
}

// candidates returns the folders to try, best first.
func candidates() []string {
	var dirs []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	add(os.Getenv("PG_BIN"))
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			add(filepath.Dir(real)) // packagers link it into a common folder
		}
		add(filepath.Dir(path))
	}
	var installed []string
	for _, pattern := range installations {
		found, _ := filepath.Glob(pattern)
		installed = append(installed, found...)
	}
	slices.SortStableFunc(installed, func(a, b string) int { return cmp.Compare(folderMajor(b), folderMajor(a)) })
	for _, dir := range installed {
		add(dir)
	}
	return dirs
}

var number = regexp.MustCompile(`\d+`)

// folderMajor reads the version from a path like /usr/lib/postgresql/15/bin.
func folderMajor(dir string) int {
	n, _ := strconv.Atoi(number.FindString(filepath.Base(filepath.Dir(dir))))
	return n
}

// binariesMajor returns the major version of the binaries in dir.
func binariesMajor(ctx context.Context, dir string) (string, error) {
	if _, err := exec.LookPath(program(dir, "initdb")); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, program(dir, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program(dir, "postgres"), err)
	}
	return number.FindString(string(out)), nil
}

// program returns the path of one of Postgres's programs in a folder of binaries.
func program(bin, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(bin, name)
}
