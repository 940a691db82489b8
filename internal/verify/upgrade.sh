#!/usr/bin/env bash
# Builds the release before this one from its tag, and has both work on this build's schema
# (posthaste-proof upgrade). The release before is the newest tag that is not this commit, or the
# only one that there is. While there is none, the build before the newest migration stands for it.
# Arguments go to the command.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
tag=$(git -c versionsort.suffix=- tag --list 'v*' --merged HEAD --sort=-v:refname --no-contains HEAD | head -n 1)
[ -n "$tag" ] || tag=$(git tag --list 'v*' --points-at HEAD | head -n 1)
if [ -z "$tag" ]; then
	newest=$(git log -1 --diff-filter=A --format=%H -- 'migrations/0*.sql')
	tag=$(git rev-parse --verify --quiet "$newest^") || { echo "no release is tagged, and the history does not reach back to the newest migration"; exit 1; }
fi
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/tree" 2>/dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/previous"
echo "the release before is $tag"
git worktree add --quiet --detach "$dir/tree" "$tag"
# Without optimizing, that takes two thirds of the time: nothing else needs these packages.
unoptimized='-gcflags=github.com/posthaste-dev/posthaste/...=-N -l'
(cd "$dir/tree" &&
	CGO_ENABLED=0 ${GO:-go} build -ldflags=-w "$unoptimized" -o "$dir/previous/" ./cmd/posthaste ./cmd/posthaste-proof)
"$top/bin/posthaste-proof" upgrade --previous "$dir/previous" "$@"
