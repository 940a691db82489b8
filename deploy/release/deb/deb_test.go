package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// made packs a program and returns the package's file.
func made(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary, licences, out := filepath.Join(dir, "posthaste"), filepath.Join(dir, "THIRD_PARTY.txt"), filepath.Join(dir, "posthaste.deb")
	for _, name := range []string{binary, licences} {
		if err := os.WriteFile(name, []byte("the text of "+filepath.Base(name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("../../..", "v1.2.3-rc.1", licences, out, "arm64="+binary); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheSameFilesMakeTheSamePackage(t *testing.T) {
	one, err := os.ReadFile(made(t))
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(made(t))
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("the packages differ (%v)", err)
	}
}

// dpkg reads the package, and unpacks the same files.
func TestDpkgReadsThePackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil && os.Getenv("POSTHASTE_PROGRAMS") == "required" {
		t.Fatal("dpkg-deb is not installed, and POSTHASTE_PROGRAMS=required")
	} else if err != nil {
		t.Skip("dpkg-deb is not installed")
	}
	deb, root := made(t), t.TempDir()
	dpkg := func(args ...string) string {
		out, err := exec.Command("dpkg-deb", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb %s: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for field, want := range map[string]string{"Package": "posthaste", "Version": "1.2.3~rc.1", "Architecture": "arm64"} {
		if got := dpkg("--field", deb, field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if got := dpkg("--info", deb, "conffiles"); got != "/etc/posthaste/posthaste.env" {
		t.Errorf("an upgrade leaves alone %q", got)
	}
	if got := dpkg("--info", deb, "prerm"); got != strings.TrimSpace(stop) {
		t.Errorf("before it is removed it runs %q", got)
	}
	dpkg("--extract", deb, root)
	for name, from := range map[string]string{
		"usr/lib/systemd/system/posthaste.service": "../../systemd/posthaste.service", "etc/posthaste/posthaste.env": "../../systemd/posthaste.env",
		"usr/share/doc/posthaste/copyright": "../../../LICENSE",
	} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		}
		if want, err := os.ReadFile(from); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not %s (%v)", name, from, err)
		}
	}
	for name, want := range map[string]os.FileMode{"usr/bin/posthaste": 0o755, "etc/posthaste/posthaste.env": 0o600} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, want)
		}
	}
}

// A package that is removed stops and disables its service; one that is upgraded does not.
func TestTheServiceEndsWithThePackage(t *testing.T) {
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	for name, text := range map[string]string{
		"systemctl": "#!/bin/sh\necho \"$@\" >>" + log + "\nexit 1\n", // such as the unit is not loaded
		"prerm":     stop,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"upgrade", "0.2.0"}, {"remove"}, {"deconfigure"}} {
		cmd := exec.Command("/bin/sh", append([]string{filepath.Join(bin, "prerm")}, args...)...)
		cmd.Env = []string{"PATH=" + bin}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("prerm %s: %v\n%s", args, err, out)
		}
	}
	if got, err := os.ReadFile(log); err != nil || string(got) != "disable --now posthaste.service\n" {
		t.Errorf("systemctl was called with %q, %v", got, err)
	}
}

func TestVersionsAreDebians(t *testing.T) {
	for version, want := range map[string]string{"v0.1.0": "0.1.0", "v0.1.0-rc.1": "0.1.0~rc.1", "1f2e3d": "0~1f2e3d", "devel": "0~devel", "v0.1.0-3-gabc-dirty": "0.1.0+3.gabc+dirty"} {
		if got := debianVersion(version); got != want {
			t.Errorf("%s is %s, want %s", version, got, want)
		}
	}
}
