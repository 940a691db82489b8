package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// part is a Go module or an npm package in the binary.
type part struct {
	name, version string
	purl          string
	files         []string // with its licences and notices
	text          []byte   // of those files
	licences      []string // SPDX identifiers
}

// allowed are the licences that require no more than attribution.
var allowed = []string{
	"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "0BSD", "Zlib", "Unicode-DFS-2016",
	"CC0-1.0",
}

// licenceFile matches the names of files that have to be passed on.
var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice)([.-].*)?$`)

// modules returns the modules that a binary lists, with the licence files of each folder from the module's own down to
// those of the linked packages.
func modules(source string, info *debug.BuildInfo) ([]part, error) {
	folders, err := linked(source, info)
	if err != nil {
		return nil, err
	}
	goroot, err := command(source, info, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	release := strings.TrimPrefix(toolchain(info), "go")
	parts := []part{{
		name: "std", version: release, purl: "pkg:golang/std@" + release,
		files: []string{filepath.Join(strings.TrimSpace(string(goroot)), "LICENSE")},
	}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		files := slices.Sorted(slices.Values(folders[m.Path+"@"+m.Version]))
		parts = append(parts, part{
			name: m.Path, version: m.Version, purl: "pkg:golang/" + m.Path + "@" + m.Version,
			files: slices.Compact(files),
		})
	}
	return parts, nil
}

// linked returns the licence files of each module by PATH@VERSION, for the platform of the binary.
func linked(source string, info *debug.BuildInfo) (map[string][]string, error) {
	out, err := command(source, info, "list", "-deps", "-f",
		"{{with .Module}}{{.Path}}@{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}", info.Path)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 {
			continue // of the standard library
		}
		for folder := fields[2]; len(folder) >= len(fields[1]); folder = filepath.Dir(folder) {
			found, err := licencesOf(folder)
			if err != nil {
				return nil, err
			}
			all[fields[0]] = append(all[fields[0]], found...)
		}
	}
	return all, nil
}

// certificates is the module with Mozilla's roots, which the image has as a file (deploy/release/image).
const certificates = "golang.org/x/crypto/x509roots/fallback"

// roots returns that module in the version that packs the image.
func roots(source string, info *debug.BuildInfo) (part, error) {
	out, err := command(filepath.Join(source, "deploy", "release"), info, "list", "-m", "-f", "{{.Version}}\t{{.Dir}}", certificates)
	if err != nil {
		return part{}, err
	}
	version, folder, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	if folder == "" { // it is not fetched yet
		return part{}, fmt.Errorf("%s %s is not in the module cache: go mod download", certificates, version)
	}
	files, err := licencesOf(folder)
	return part{name: certificates, version: version, purl: "pkg:golang/" + certificates + "@" + version, files: files}, err
}

// command runs go in the source's folder, for the platform and with the tags and the toolchain of the binary.
func command(source string, info *debug.BuildInfo, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN="+toolchain(info))
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH":
			cmd.Env = append(cmd.Env, s.Key+"="+s.Value)
		case "-tags":
			cmd.Env = append(cmd.Env, "GOFLAGS=-tags="+s.Value)
		}
	}
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go %s: %s", args[0], failed.Stderr)
	}
	return out, err
}

// toolchain returns the toolchain that built a binary, such as go1.26.10.
func toolchain(info *debug.BuildInfo) string {
	name, _, _ := strings.Cut(info.GoVersion, " ") // experiments follow the version
	return name
}

func licencesOf(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && licenceFile.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	return files, nil
}

// assets returns the scripts that are copied into the binary, as listed in deploy/release/parts/assets.txt.
func assets(source string) ([]part, error) {
	list, err := os.ReadFile(filepath.Join(source, "deploy/release/parts/assets.txt"))
	if err != nil {
		return nil, err
	}
	var parts []part
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		at := strings.LastIndexByte(fields[0], '@')
		p := part{name: fields[0][:at], version: fields[0][at+1:], purl: "pkg:npm/" +
			strings.Replace(fields[0], "@", "%40", strings.Count(fields[0], "@")-1)}
		for _, f := range fields[1:] {
			p.files = append(p.files, filepath.Join(source, f))
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// classify identifies the licences of a part.
func (p *part) classify() error {
	var all bytes.Buffer
	for _, file := range p.files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: its licence %s is not there", p.name, file)
		} else if err != nil {
			return err
		}
		all.Write(bytes.TrimSpace(text))
		all.WriteString("\n\n")
		for _, m := range licensecheck.Scan(text).Match {
			if !m.IsURL && !slices.Contains(p.licences, m.ID) {
				p.licences = append(p.licences, m.ID)
			}
		}
	}
	slices.Sort(p.licences)
	p.text = all.Bytes()
	if len(p.licences) == 0 {
		return fmt.Errorf("%s %s: no licence is known of it (files %q)", p.name, p.version, p.files)
	}
	for _, id := range p.licences {
		if !slices.Contains(allowed, id) {
			return fmt.Errorf("%s %s: its licence is %s, which is not one of %s", p.name, p.version, id,
				strings.Join(allowed, ", "))
		}
	}
	return nil
}
