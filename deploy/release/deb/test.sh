#!/usr/bin/env bash
# dpkg installs the Debian package that make deb has made, upgrades, removes and purges it. Its root is a folder that
# has nothing but a shell, for the package's scripts, and a systemctl that writes down what it is asked. Exits with 3
# where there is no dpkg, or this is not root.
set -euo pipefail
cd "$(dirname "$0")/../../.."

command -v dpkg >/dev/null || { echo "deb: not possible here: there is no dpkg" >&2; exit 3; }
[ "$(id -u)" = 0 ] || { echo "deb: not possible here: only root may run a package's scripts in a folder" >&2; exit 3; }

arch=$(dpkg --print-architecture)
deb=bin/release/posthaste_$arch.deb built=bin/release/linux_$arch/posthaste
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
fail() { echo "deb: $1" >&2; exit 1; }
install_deb() {
	dpkg --root="$root" --install "$deb" >"$root/tmp/dpkg" 2>&1 || fail "it is not installed: $(cat "$root/tmp/dpkg")"
}
# asked WHAT...: systemctl was asked for that, and for nothing else, since the last time.
asked() {
	local got; got=$(cat "$root/tmp/asked" 2>/dev/null || true)
	rm -f "$root/tmp/asked"
	[ "$got" = "$(printf '%s\n' "$@")" ] || fail "systemctl was asked for: $got; want: $*"
}

mkdir -p "$root"/{bin,dev,usr/bin,tmp,run/systemd/system} "$root"/var/lib/dpkg/{info,updates,triggers}
touch "$root"/var/lib/dpkg/{status,available} "$root"/{dev/null,usr/bin/other}
for file in /bin/sh $(ldd /bin/sh | grep -o '/[^ )]*'); do
	mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
done
printf '#!/bin/sh\necho "$@" >>/tmp/asked\n' >"$root/bin/systemctl"
chmod 0755 "$root/bin/systemctl"
files() { find "$root" -mindepth 1 ! -path "$root/var/*" ! -path "$root/tmp/*" | sort; }
files >"$root/tmp/before"

install_deb
asked daemon-reload
status=$(dpkg-query --root="$root" -W -f '${Status}' posthaste)
[ "$status" = "install ok installed" ] || fail "dpkg says: $status"
cmp "$built" "$root/usr/bin/posthaste" || fail "the installed program is another"
version=$(chroot "$root" /usr/bin/posthaste version) || fail "the installed program does not run"
[ "$version" = "$("$built" version)" ] || fail "the installed program is of version $version"
while read -r mode file; do
	got=$(stat -c '%a:%u:%g' "$root/$file") && [ -s "$root/$file" ] || fail "$file is not there, or empty"
	[ "$got" = "$mode:0:0" ] || fail "$file has the mode and owners $got, want $mode:0:0"
done <<'END'
755 usr/bin/posthaste
600 etc/posthaste/posthaste.env
644 usr/lib/systemd/system/posthaste.service
644 usr/share/doc/posthaste/copyright
644 usr/share/doc/posthaste/THIRD_PARTY.txt
END

echo OUTBOX_KEEP=7d >>"$root/etc/posthaste/posthaste.env"
install_deb # over itself, as an upgrade: the service goes on, and the settings are the administrator's
asked daemon-reload daemon-reload
grep -qx OUTBOX_KEEP=7d "$root/etc/posthaste/posthaste.env" || fail "an upgrade took the administrator's settings"

dpkg --root="$root" --remove posthaste >/dev/null || fail "it cannot be removed"
asked "disable --now posthaste.service" daemon-reload
[ ! -e "$root/usr/bin/posthaste" ] || fail "it is removed, and its program is there"
grep -qx OUTBOX_KEEP=7d "$root/etc/posthaste/posthaste.env" || fail "its removal took the administrator's settings"
dpkg --root="$root" --purge posthaste >/dev/null || fail "it cannot be purged"
asked daemon-reload
files | diff "$root/tmp/before" - || fail "it is purged, and something is left, or missing"
echo "deb: dpkg installed $deb, which ran as $version, upgraded, removed and purged it"
