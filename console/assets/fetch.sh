#!/bin/sh
# Copies what vendor.txt lists from npm into vendor/, and checks it. Packages are fetched once each.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -v '^#' vendor.txt | while read -r package file name sum; do
	if [ ! -d "$work/$package" ]; then
		mkdir -p "$work/$package"
		(cd "$work/$package" && npm pack --silent "$package" >/dev/null && tar xzf ./*.tgz)
	fi
	echo "$sum  $work/$package/package/$file" | sha256sum -c --quiet -
	cp "$work/$package/package/$file" "vendor/$name"
done
