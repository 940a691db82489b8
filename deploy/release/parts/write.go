package main

import (
	"bytes"
	"fmt"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// notices returns THIRD_PARTY.txt: each part, and the text that its licence requires to be passed on.
func notices(parts []part) []byte {
	var b bytes.Buffer
	b.WriteString("Posthaste has the following parts, each under its own licence.\n\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "%s %s (%s)\n", p.name, p.version, strings.Join(p.licences, ", "))
	}
	for _, p := range parts {
		fmt.Fprintf(&b, "\n%s\n%s %s\n\n%s", strings.Repeat("-", 80), p.name, p.version, p.text)
	}
	return b.Bytes()
}

// bill returns the bill of materials. It has neither a serial number nor a time, so that equal binaries have equal
// ones.
func bill(parts []part, version string) ([]byte, error) {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		Type: cdx.ComponentTypeApplication, BOMRef: "posthaste", Name: "posthaste", Version: version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "MIT"}}},
	}}
	components := make([]cdx.Component, 0, len(parts))
	for _, p := range parts {
		var licences cdx.Licenses
		for _, id := range p.licences {
			licences = append(licences, cdx.LicenseChoice{License: &cdx.License{ID: id}})
		}
		components = append(components, cdx.Component{
			Type: cdx.ComponentTypeLibrary, BOMRef: p.purl, Name: p.name, Version: p.version, PackageURL: p.purl,
			Licenses: &licences,
		})
	}
	bom.Components = &components
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("encode bill of materials: %w", err)
	}
	return b.Bytes(), nil
}
