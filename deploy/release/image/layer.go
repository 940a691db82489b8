package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// file is one file of the image.
type file struct {
	name string // from the root, without the first slash
	mode int64
	data []byte
}

// files returns the files of the image: the program, the certificates for verifying webhooks, brokers and databases,
// and the licences. The program contains the time zones.
func files(binary string, licences []string) ([]file, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	all := []file{{"posthaste", 0o755, program}, {"etc/ssl/certs/ca-certificates.crt", 0o644, roots()}}
	for _, name := range licences {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, file{"usr/share/doc/posthaste/" + path.Base(name), 0o644, text})
	}
	return all, nil
}

// roots returns Mozilla's roots from the pinned version of the module: those of the building machine would make the
// image depend on the machine. Roots that are trusted only up to a date are omitted, because a file cannot express
// that.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// A write to a bytes.Buffer never fails.
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return all.Bytes()
}

// archive returns the tar of the files and their folders, and depends on nothing else: everything belongs to root and
// is dated the first second of 1970.
func archive(all []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	var folders []string
	for _, f := range all {
		for i, c := range f.name {
			if folder := f.name[:i]; c == '/' && !slices.Contains(folders, folder) {
				folders = append(folders, folder)
				if err := w.WriteHeader(&tar.Header{
					Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755,
					ModTime: time.Unix(0, 0),
				}); err != nil {
					return nil, err
				}
			}
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)),
			ModTime: time.Unix(0, 0),
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// packed returns a layer compressed with zstd for a registry, a tenth smaller than with gzip. Its window has the size
// that every reader must support (8 MiB, RFC 8878). One goroutine compresses, so that the bytes do not depend on the
// number of processors.
func packed(raw []byte) (v1.Layer, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(opener(e.EncodeAll(raw, nil)), tarball.WithMediaType(types.OCILayerZStd))
}

// plain returns the same layer uncompressed: "docker load" supports zstd only since Docker 23.
func plain(raw []byte) (v1.Layer, error) {
	return tarball.LayerFromOpener(opener(raw), tarball.WithMediaType(types.OCIUncompressedLayer))
}

func opener(data []byte) tarball.Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}
