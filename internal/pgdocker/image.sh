#!/usr/bin/env bash
# Makes a container image of the Postgres of this machine (Linux; PG=18 asks for
# that major version, which is fetched if it is not installed), for where no
# registry can be reached:
#
#	internal/pgdocker/image.sh my-postgres
#	POSTHASTE_PG_IMAGE=my-postgres make test-docker
set -euo pipefail
cd "$(dirname "$0")"
image=${1:?usage: image.sh NAME}

bin=$(go run -C ../.. ./internal/pgdev/binaries)
home=$(dirname "$bin")
trees=("$home")
for tree in "/usr/share/postgresql/${home##*/}" /usr/share/zoneinfo; do # where Debian's Postgres has the rest
	if [ -d "$tree" ]; then trees+=("$tree"); fi
done
# What they are linked with. LLVM, for JIT, is bigger than all else together.
libraries=$(ldd /bin/sh "$bin"/{initdb,postgres} "$home"/lib/*.so 2>/dev/null |
	grep -v LLVM | grep -oE '/\S+ \(0x' | cut -d' ' -f1 | grep -v "^$home/" | sort -u)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -m 1777 "$root/tmp"
mkdir "$root/etc"
echo 'postgres:x:70:70::/tmp:/bin/sh' >"$root/etc/passwd"
install -m 755 entrypoint.sh "$root/entrypoint.sh"
# shellcheck disable=SC2086 # libraries have no spaces in their names
tar -chP --hard-dereference --exclude='*llvm*' --exclude='*/bitcode' \
	-C "$root" etc tmp entrypoint.sh "${trees[@]}" /bin/sh $libraries |
	docker import -c 'USER 70' -c "ENV PATH=$bin:/bin" -c 'ENTRYPOINT ["/entrypoint.sh"]' - "$image" >/dev/null
