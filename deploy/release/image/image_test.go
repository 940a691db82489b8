package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// made returns the image of a program, built in a folder of its own from a file of that age, and the digest of the
// index.
func made(t *testing.T, program string, age time.Duration) (v1.Image, v1.Hash) {
	t.Helper()
	dir := t.TempDir()
	arm, amd, licence := filepath.Join(dir, "arm", "posthaste-of-today"), filepath.Join(dir, "amd", "posthaste-of-today"), filepath.Join(dir, "LICENSE")
	for file, text := range map[string]string{
		arm: program, filepath.Join(dir, "arm", "image", "THIRD_PARTY.txt"): "parts of arm64",
		amd: program, filepath.Join(dir, "amd", "image", "THIRD_PARTY.txt"): "parts of amd64",
		licence: "ours",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if at := time.Now().Add(-age); os.Chtimes(file, at, at) != nil {
			t.Fatal("the file keeps its age")
		}
	}
	out := filepath.Join(dir, "image")
	if err := run(options{out: out, version: "v1.2.3", revision: "abc", docs: []string{licence}, beside: "image", binaries: []string{"linux/arm64=" + arm, "linux/amd64=" + amd}}); err != nil {
		t.Fatal(err)
	}
	loaded, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(out + ".tar") })
	if err != nil || len(loaded) != 1 || !slices.Equal(loaded[0].RepoTags, []string{"posthaste:1.2.3"}) {
		t.Errorf("docker load gets %+v, %v", loaded, err)
	}
	index, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(manifest.Manifests); n != 2 || manifest.Manifests[0].Platform.Architecture != "arm64" {
		t.Fatalf("the index has %d images, the first for %v", n, manifest.Manifests[0].Platform)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return image, digest
}

func TestTheTagHasNoV(t *testing.T) {
	for version, want := range map[string]string{"v0.1.0": "0.1.0", "v0.1.0-3-gabc-dirty": "0.1.0-3-gabc-dirty", "0.1.0": "0.1.0", "1f2e3d": "1f2e3d", "devel": "devel"} {
		if got := (options{version: version}).tag(); got != want {
			t.Errorf("the tag of %s is %s, want %s", version, got, want)
		}
	}
}

// The digest depends on the content alone, not on place and time.
func TestTheSameProgramMakesTheSameDigest(t *testing.T) {
	program := strings.Repeat("program", 1<<20)
	_, first := made(t, program, 0)
	_, second := made(t, program, 400*24*time.Hour)
	if first != second {
		t.Errorf("the same program made %s and %s", first, second)
	}
	if _, other := made(t, program+"!", 0); other == first {
		t.Error("another program made the same digest")
	}
}

// An image that is too large is not written; the other tests write small ones.
func TestAnImageOfMoreThan15MBIsRefused(t *testing.T) {
	dir := t.TempDir()
	program, out := filepath.Join(dir, "posthaste"), filepath.Join(dir, "image")
	noise := make([]byte, limit) // nothing makes it smaller, and the certificates come on top
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	if err := os.WriteFile(program, noise, 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(options{out: out, version: "v1.2.3", binaries: []string{"linux/amd64=" + program}})
	if err == nil || !strings.Contains(err.Error(), "may have 15000000") {
		t.Errorf("an image that is too large is made, with the error %v", err)
	}
	for _, written := range []string{out, out + ".tar"} {
		if _, err := os.Stat(written); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", written, err)
		}
	}
}

func TestWhatIsInTheImage(t *testing.T) {
	image, _ := made(t, "program", time.Hour)
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	raw, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(raw)
	if err := errors.Join(err, raw.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(all, make([]byte, 1024)) {
		t.Error("the layer does not end as an archive does")
	}
	var names []string
	roots := x509.NewCertPool()
	for r := tar.NewReader(bytes.NewReader(all)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 || h.Mode&0o022 != 0 {
			t.Errorf("%s: uid %d, gid %d, mode %o, time %s", h.Name, h.Uid, h.Gid, h.Mode, h.ModTime)
		}
		if executable := h.Mode&0o111 == 0o111; executable != (h.Name == "posthaste" || h.Typeflag == tar.TypeDir) {
			t.Errorf("%s: mode %o", h.Name, h.Mode)
		}
		if h.Name == "etc/ssl/certs/ca-certificates.crt" {
			text, err := io.ReadAll(r)
			if err != nil || !roots.AppendCertsFromPEM(text) {
				t.Errorf("the certificates cannot be read: %v", err)
			}
		}
		if h.Name == "usr/share/doc/posthaste/THIRD_PARTY.txt" {
			if text, err := io.ReadAll(r); err != nil || string(text) != "parts of arm64" {
				t.Errorf("the image of arm64 has the licences %q, %v", text, err)
			}
		}
	}
	want := []string{
		"posthaste", "etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt",
		"usr/", "usr/share/", "usr/share/doc/", "usr/share/doc/posthaste/", "usr/share/doc/posthaste/LICENSE", "usr/share/doc/posthaste/THIRD_PARTY.txt",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the image has %q, want %q", names, want)
	}
	if n := len(roots.Subjects()); n < 100 { //nolint:staticcheck // these are not the system's roots
		t.Errorf("%d root certificates: Mozilla has more", n)
	}
}

func TestHowTheImageRuns(t *testing.T) {
	image, _ := made(t, "program", 0)
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	if c.User != "65532:65532" {
		t.Errorf("it runs as %q", c.User)
	}
	if got := strings.Join(append(c.Entrypoint, c.Cmd...), " "); got != "/posthaste serve" {
		t.Errorf("it runs %q", got)
	}
	if got := strings.Join(c.Healthcheck.Test, " "); got != "CMD /posthaste healthcheck" {
		t.Errorf("its health is asked by %q", got)
	}
	for label, want := range map[string]string{"version": "1.2.3", "revision": "abc", "licenses": "MIT"} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	if file.Architecture != "arm64" || file.OS != "linux" || file.Created.Unix() != 0 {
		t.Errorf("platform %s/%s, created %s", file.OS, file.Architecture, file.Created)
	}
}
