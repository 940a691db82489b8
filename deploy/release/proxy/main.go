// Command proxy writes this module to a folder that GOPROXY can name, as its latest version, and prints that version.
// So a test runs the lines of the manual that install @latest, before or without a push.
//
//	proxy -source ../.. -out FOLDER
//
// The module is what git has of -source, with the changes that are not committed yet.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const path = "github.com/posthaste-dev/posthaste"

func main() {
	source := flag.String("source", ".", "`FOLDER` of the module")
	out := flag.String("out", ".", "`FOLDER` to write to")
	flag.Parse()
	version, err := write(*source, filepath.Join(*out, path, "@v"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
	fmt.Println(version)
}

// write writes the module's files, and returns its version. The version depends on what the zip contains: Go caches
// modules by version.
func write(source, out string) (string, error) {
	copied, err := os.MkdirTemp("", "proxy")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(copied) }()
	when, err := checkout(source, copied)
	if err != nil {
		return "", err
	}
	var content bytes.Buffer
	provisional := module.Version{Path: path, Version: "v0.0.0"}
	if err := zip.CreateFromDir(&content, provisional, copied); err != nil {
		return "", err
	}
	version := module.PseudoVersion("v0", "", when, fmt.Sprintf("%x", sha256.Sum256(content.Bytes()))[:12])
	content.Reset()
	if err := zip.CreateFromDir(&content, module.Version{Path: path, Version: version}, copied); err != nil {
		return "", err
	}
	mod, err := os.ReadFile(filepath.Join(copied, "go.mod"))
	if err != nil {
		return "", err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, when})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	for name, text := range map[string][]byte{
		"list": nil, "../@latest": info, version + ".info": info, version + ".mod": mod, version + ".zip": content.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return "", err
		}
	}
	return version, nil
}

// checkout copies the files of source that git knows to a folder, and returns the time of the last commit.
func checkout(source, to string) (when time.Time, err error) {
	git := func(args ...string) (string, error) {
		said, err := exec.Command("git", append([]string{"-C", source}, args...)...).Output()
		if err != nil {
			err = fmt.Errorf("git %s: %w", args[0], err)
		}
		return string(said), err
	}
	said, err := git("show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return when, err
	}
	if when, err = time.Parse(time.RFC3339, strings.TrimSpace(said)); err != nil {
		return when, err
	}
	if said, err = git("ls-files", "-z", "--cached", "--others", "--exclude-standard"); err != nil {
		return when, err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(said, "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(source, name))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), fs.ModePerm)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o644)
		}
		if err != nil {
			return when, err
		}
	}
	return when.UTC(), nil
}
