// Command parts lists the components of a released binary: THIRD_PARTY.txt has the licences of every linked module and
// of every embedded script, and posthaste.cdx.json is its bill of materials (CycloneDX).
//
//	parts -source ../.. -out bin/release/linux_amd64 bin/release/linux_amd64/posthaste
//
// The folder image in -out has the same two files for the container image, which has Mozilla's root certificates as
// well.
//
// It fails if a part has no known licence, or one that requires more than attribution.
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	source := flag.String("source", ".", "`FOLDER` of the module whose binary it is")
	out := flag.String("out", ".", "`FOLDER` to write to")
	version := flag.String("version", "devel", "`VERSION` of the binary")
	flag.Parse()
	if err := run(*source, *out, *version, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run(source, out, version, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	parts, err := modules(source, info)
	if err != nil {
		return err
	}
	embedded, err := assets(source)
	if err != nil {
		return err
	}
	certificates, err := roots(source, info)
	if err != nil {
		return err
	}
	parts = append(parts, embedded...)
	all := append(slices.Clone(parts), certificates)
	for i := range all {
		if err := all[i].classify(); err != nil {
			return err
		}
	}
	parts = all[:len(parts)]
	if err := write(parts, version, out); err != nil {
		return err
	}
	return write(all, version, filepath.Join(out, "image"))
}

// write writes the two lists of parts to a folder.
func write(parts []part, version, out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "THIRD_PARTY.txt"), notices(parts), 0o644); err != nil {
		return err
	}
	bom, err := bill(parts, version)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "posthaste.cdx.json"), bom, 0o644); err != nil {
		return err
	}
	// make image prints the digests of the image, and nothing else.
	fmt.Fprintf(os.Stderr, "%d parts  %s/THIRD_PARTY.txt %s/posthaste.cdx.json\n", len(parts), out, out)
	return nil
}
