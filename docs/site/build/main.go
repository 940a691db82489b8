// Command build makes docs/site/site.zip.zst of the pages in docs/: with VitePress, which fails on a dead link. It
// needs node 18 or newer, and npm. The same pages make the same archive.
//
// The first build on a machine downloads VitePress, which npm keeps; later ones need no network. With -fresh, which a
// release sets, it fails if the archive was not of these pages.
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/posthaste-dev/posthaste/docs/site"
)

const sources = "sources.txt" // in the archive: what it was made of

func main() {
	fresh := flag.Bool("fresh", false, "fail if site.zip.zst is not of these pages")
	flag.Parse()
	if err := build("docs", *fresh); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

func build(docs string, fresh bool) error {
	folder := filepath.Join(docs, "site")
	of, err := digests(docs)
	if err != nil {
		return err
	}
	if err := vitepress(folder); err != nil {
		return err
	}
	dist := filepath.Join(folder, ".vitepress", "dist")
	if err := os.WriteFile(filepath.Join(dist, sources), []byte(of), 0o644); err != nil {
		return err
	}
	archive := filepath.Join(folder, "site.zip.zst")
	if was := recorded(archive); was == of {
		fmt.Println("docs: site.zip.zst is of these pages")
		return nil
	} else if fresh {
		return fmt.Errorf("site.zip.zst is not of these pages: run make docs, and commit it. What differs (-site.zip.zst +pages):\n%s", differ(was, of))
	}
	return pack(dist, archive)
}

// vitepress installs VitePress, unless that has been done, and runs it.
func vitepress(folder string) error {
	if _, err := os.Stat(filepath.Join(folder, "node_modules", "vitepress")); err != nil {
		err := run(folder, "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error")
		if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(folder, ".vitepress", "dist")); err != nil {
		return err
	}
	began := time.Now()
	if err := run(folder, "npx", "--no-install", "vitepress", "build"); err != nil {
		return err
	}
	fmt.Printf("docs: VitePress built the pages in %.1f s\n", time.Since(began).Seconds())
	return run(folder, "node", "search_test.mjs")
}

func run(folder string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// digests has a line for each file that the site is made of.
func digests(docs string) (string, error) {
	var lines strings.Builder
	err := filepath.WalkDir(docs, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, docs+string(filepath.Separator)))
		if entry.IsDir() {
			if slices.Contains([]string{"node_modules", "dist", "cache", "adr", "model", "build", ".temp"},
				entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		evidence := slices.Contains([]string{"proof.md", "mutants.md", "architecture.md", "races.md", "from-main.md"}, name)
		if evidence || !slices.Contains([]string{".md", ".svg", ".mjs", ".css", ".json"}, filepath.Ext(name)) {
			return nil
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), name)
		return err
	})
	return lines.String(), err
}

// recorded returns what an archive was made of, "" if there is none.
func recorded(archive string) string {
	packed, err := os.ReadFile(archive)
	if err != nil {
		return ""
	}
	files, err := site.Unpack(packed)
	if err != nil {
		return ""
	}
	of, _ := fs.ReadFile(files, sources)
	return string(of)
}

func differ(was, is string) string {
	var lines []string
	for _, side := range []struct{ sign, of, other string }{{"-", was, is}, {"+", is, was}} {
		for line := range strings.Lines(side.of) {
			if !strings.Contains(side.other, line) {
				lines = append(lines, side.sign+line)
			}
		}
	}
	return strings.Join(lines, "")
}

// pack writes an archive that depends on nothing but the files' names and content.
func pack(dist, archive string) error {
	var together bytes.Buffer
	files := zip.NewWriter(&together)
	err := filepath.WalkDir(dist, func(path string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() || entry.Name() == "hashmap.json" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, dist+string(filepath.Separator)))
		w, err := files.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err = errors.Join(err, files.Close()); err != nil {
		return err
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	packed := encoder.EncodeAll(together.Bytes(), nil)
	fmt.Printf("docs: %s has %d bytes\n", archive, len(packed))
	return os.WriteFile(archive, packed, 0o644)
}
