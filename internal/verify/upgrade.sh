#!/usr/bin/env bash
# Builds the release before this one from its tag, and has both work on this build's schema
# (posthaste-proof upgrade). The release before is the newest tag that is not this commit, or the
# only one that there is. Arguments go to the command.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
tag=$(git tag --list 'v*' --merged HEAD --sort=-v:refname --no-contains HEAD | head -n 1)
[ -n "$tag" ] || tag=$(git tag --list 'v*' --points-at HEAD | head -n 1)
dir=$(mktemp -d)
trap 'git worktree remove --force "$dir/tree" 2>/dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/previous"
if [ -n "$tag" ]; then
	echo "the release before is $tag"
	git worktree add --quiet --detach "$dir/tree" "$tag"
	(cd "$dir/tree" && CGO_ENABLED=0 ${GO:-go} build -o "$dir/previous/" ./cmd/posthaste ./cmd/posthaste-proof)
else
	echo "no release is tagged: this build stands for the release before, too"
	cp bin/posthaste bin/posthaste-proof "$dir/previous/"
fi
"$top/bin/posthaste-proof" upgrade --previous "$dir/previous" "$@"
