// Command image packs binaries into an OCI image, without a container engine and without a base image. The same
// binaries and flags make the same digest, on every machine.
//
//	image -out bin/image -version v0.1.0 -revision 1f2e… -doc LICENSE linux/amd64=bin/release/linux_amd64/posthaste
//
// The image of version v0.1.0 has the tag 0.1.0, as the chart and the compose file name it.
//
// It writes an OCI layout of all platforms to the folder of -out and, next to it, an archive of the first platform for
// docker load, with ".tar" appended to the name. It prints the digest and the size in a registry for each platform, and
// refuses an image of more than 15 MB.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options are the values of the flags.
type options struct {
	out, version, revision string
	docs                   []string
	beside                 string
	binaries               []string // PLATFORM=FILE
}

func main() {
	var o options
	flag.StringVar(&o.out, "out", "bin/image", "`FOLDER` of the layout")
	flag.StringVar(&o.version, "version", "devel", "`VERSION` for the label and the tag, as v0.1.0")
	flag.StringVar(&o.revision, "revision", "", "`COMMIT` for the label")
	flag.Func("doc", "`FILE` for /usr/share/doc/posthaste, repeated", func(v string) error {
		o.docs = append(o.docs, v)
		return nil
	})
	flag.StringVar(&o.beside, "docs", "", "`FOLDER` beside each binary whose files are for its /usr/share/doc/posthaste")
	flag.Parse()
	o.binaries = flag.Args()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if len(o.binaries) == 0 {
		return fmt.Errorf("nothing to pack: say PLATFORM=FILE")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for i, pair := range o.binaries {
		at, binary, _ := strings.Cut(pair, "=")
		platform, err := v1.ParsePlatform(at)
		if err != nil {
			return err
		}
		image, err := o.image(*platform, binary, i == 0)
		if err != nil {
			return fmt.Errorf("%s: %w", pair, err)
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if _, err := layout.Write(o.out, index); err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s  %s\n", digest, o.out)
	return nil
}

// image builds the image of one platform and prints its size. It also writes the archive for "docker load".
func (o options) image(platform v1.Platform, binary string, archived bool) (v1.Image, error) {
	docs := slices.Clone(o.docs)
	if o.beside != "" { // what is linked differs between platforms, and so do the licences
		own, err := filepath.Glob(filepath.Join(filepath.Dir(binary), o.beside, "*"))
		if err != nil {
			return nil, err
		}
		if len(own) == 0 {
			return nil, fmt.Errorf("no file is in %s beside %s", o.beside, binary)
		}
		docs = append(docs, own...)
	}
	all, err := files(binary, docs)
	if err != nil {
		return nil, err
	}
	raw, err := archive(all)
	if err != nil {
		return nil, err
	}
	layer, err := packed(raw)
	if err != nil {
		return nil, err
	}
	image, err := build(platform, layer, o.tag(), o.revision)
	if err != nil {
		return nil, err
	}
	size, err := stored(image)
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	fmt.Printf("%s  %s, %.1f MB\n", digest, platform, float64(size)/1e6)
	if size > limit {
		return nil, fmt.Errorf("the image has %d bytes in a registry, and may have %d", size, limit)
	}
	if archived {
		if err := o.archive(platform, raw); err != nil {
			return nil, fmt.Errorf("write archive: %w", err)
		}
	}
	return image, nil
}

// limit is the most that an image may take in a registry, in bytes.
const limit = 15_000_000

// released matches the versions of which Go writes a v before the number.
var released = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.`)

// tag returns the version as images, charts and Debian write it: without the v.
func (o options) tag() string {
	if released.MatchString(o.version) {
		return o.version[1:]
	}
	return o.version
}

// archive writes the archive for "docker load", with the same files and the same configuration.
func (o options) archive(platform v1.Platform, raw []byte) error {
	layer, err := plain(raw)
	if err != nil {
		return err
	}
	image, err := build(platform, layer, o.tag(), o.revision)
	if err != nil {
		return err
	}
	tag, err := name.NewTag("posthaste:" + o.tag())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(o.out+".tar", tag, image)
}

// stored returns the size of an image in a registry: its manifest, its configuration and its layers.
func stored(image v1.Image) (int64, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return 0, err
	}
	size, err := image.Size() // of the manifest
	if err != nil {
		return 0, err
	}
	size += manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size, nil
}
