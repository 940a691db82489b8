// Command deb packs a binary, the systemd unit and its settings into a Debian package. The same files make the same
// package.
//
//	deb -source ../.. -version v0.1.0 -licences THIRD_PARTY.txt -out bin/release/posthaste_amd64.deb amd64=bin/release/linux_amd64/posthaste
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// file is one file of an archive within the package.
type file struct {
	name string // from the root, without the first slash
	mode int64
	data []byte
}

func main() {
	source := flag.String("source", ".", "`FOLDER` of the repository")
	version := flag.String("version", "devel", "`VERSION` of the program")
	licences := flag.String("licences", "", "`FILE` with the licences of its parts")
	out := flag.String("out", "posthaste.deb", "`FILE` to write")
	flag.Parse()
	if err := run(*source, *version, *licences, *out, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "deb:", err)
		os.Exit(1)
	}
}

func run(source, version, licences, out, pair string) error {
	arch, binary, ok := strings.Cut(pair, "=")
	if !ok {
		return fmt.Errorf("want ARCHITECTURE=FILE")
	}
	data := []file{
		{"etc/posthaste/posthaste.env", 0o600, nil},
		{"usr/bin/posthaste", 0o755, nil},
		{"usr/lib/systemd/system/posthaste.service", 0o644, nil},
		{"usr/share/doc/posthaste/THIRD_PARTY.txt", 0o644, nil},
		{"usr/share/doc/posthaste/copyright", 0o644, nil},
	}
	size := 0
	for i, from := range []string{
		filepath.Join(source, "deploy/systemd/posthaste.env"), binary,
		filepath.Join(source, "deploy/systemd/posthaste.service"), licences, filepath.Join(source, "LICENSE"),
	} {
		var err error
		if data[i].data, err = os.ReadFile(from); err != nil {
			return err
		}
		size += len(data[i].data)
	}
	payload, err := packed(data)
	if err != nil {
		return err
	}
	about, err := packed([]file{
		{"control", 0o644, fmt.Appendf(nil, control, debianVersion(version), arch, size/1024)},
		{"conffiles", 0o644, []byte("/etc/posthaste/posthaste.env\n")},
		{"postinst", 0o755, []byte(reload)},
		{"prerm", 0o755, []byte(stop)},
		{"postrm", 0o755, []byte(reload)},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(out, ar(file{name: "debian-binary", data: []byte("2.0\n")},
		file{name: "control.tar.gz", data: about}, file{name: "data.tar.gz", data: payload}), 0o644)
}

const control = `Package: posthaste
Version: %s
Architecture: %s
Maintainer: The Posthaste founders <noreply@posthaste.invalid>
Installed-Size: %d
Section: net
Priority: optional
Recommends: ca-certificates
Homepage: https://github.com/posthaste-dev/posthaste
Description: transactional outbox and job dispatcher for Postgres
 Finds the jobs that an application's transactions enqueued, and carries them
 out. The service is not started before /etc/posthaste/posthaste.env says on
 which database: systemctl enable --now posthaste.
`

// reload makes systemd reload the unit, if systemd runs.
const reload = `#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
`

// stop ends and disables the service before the package is removed; otherwise the process would go on without its
// files, and a link to the unit would stay. An upgrade leaves it running: systemctl restart posthaste takes the new
// program.
const stop = `#!/bin/sh
set -e
if [ "$1" = remove ] && command -v systemctl >/dev/null; then systemctl disable --now posthaste.service || true; fi
`

// since matches the output of git describe for commits after a release.
var since = regexp.MustCompile(`-([0-9]+)-g([0-9a-f]+)`)

// debianVersion returns a version in the order of Debian's comparison: it begins with a digit, pre-releases of 0.1.0
// sort before it, and builds of later commits after it.
func debianVersion(version string) string {
	v := strings.TrimPrefix(version, "v")
	if v == "" || v[0] < '0' || v[0] > '9' || !strings.Contains(v, ".") {
		v = "0~" + v
	}
	v = strings.Replace(since.ReplaceAllString(v, "+$1.g$2"), "-dirty", "+dirty", 1)
	return strings.ReplaceAll(v, "-", "~")
}

// packed returns the compressed tar of files and their folders. Everything belongs to root and is dated the first
// second of 1970.
func packed(files []file) ([]byte, error) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	made := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name {
			if folder := f.name[:i]; c == '/' && !made[folder] {
				made[folder] = true
				if err := w.WriteHeader(&tar.Header{
					Typeflag: tar.TypeDir, Name: "./" + folder + "/", Mode: 0o755,
					ModTime: time.Unix(0, 0),
				}); err != nil {
					return nil, err
				}
			}
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: "./" + f.name, Mode: f.mode, Size: int64(len(f.data)),
			ModTime: time.Unix(0, 0), Uname: "root", Gname: "root",
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// ar returns an archive in the format of dpkg.
func ar(members ...file) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range members {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		b.Write(m.data)
		if len(m.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
