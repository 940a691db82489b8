// Command parts lists the components of a released binary: THIRD_PARTY.txt has the licences of every linked module and
// of every embedded script, and posthaste.cdx.json is its bill of materials (CycloneDX).
//
//	parts -source ../.. -out bin/release/linux_amd64 bin/release/linux_amd64/posthaste
//
// It fails if a part has no known licence, or one that requires more than attribution.
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
	parts = append(parts, embedded...)
	for i := range parts {
		if err := parts[i].classify(); err != nil {
			return err
		}
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
	fmt.Printf("%d parts  %s/THIRD_PARTY.txt %s/posthaste.cdx.json\n", len(parts), out, out)
	return nil
}
