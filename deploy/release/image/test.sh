#!/usr/bin/env bash
# The image is the same when it is made again, and runs in a container as a cautious cluster runs it: read-only, as
# nobody, without capabilities. It migrates a database, is healthy by its own check, posts a webhook over TLS to a
# receiver whose CA is mounted, and ends with 0 on SIGTERM.
# Exits with 3 where no container engine answers.
set -euo pipefail
cd "$(dirname "$0")/../../.."
go=${GO:-go}

docker version >/dev/null 2>&1 || { echo "image: not possible here: no container engine answers (docker version)" >&2; exit 3; }
if [ -z "${POSTHASTE_TEST_DATABASE_URL:-}" ]; then
	exec $go run ./internal/pgtest/withserver -- "$0"
fi

fail() { echo "image: $1" >&2; docker logs "$container" >&2 || true; exit 1; }
# In CI the image of this commit has just been made.
digest=$([ -n "${CI:-}" ] && cat bin/image.digest 2>/dev/null || make -s image)
rm -rf bin/release bin/image bin/image.tar
[ "$(make -s image)" = "$digest" ] || { echo "image: built again, it is another image" >&2; exit 1; }

container=posthaste-image-test-$$
image=$(docker load -q -i bin/image.tar | sed -n 's/^Loaded image: //p')
dir=$(mktemp -d)
chmod 755 "$dir" # the container's user reads the CA in it
$go build -C deploy/release -o "$dir/receiver" ./image/receiver
"$dir/receiver" "$dir" &
receiver=$!
for _ in {1..100}; do [ -s "$dir/url" ] && break; sleep 0.1; done
clear_away() { kill "$receiver" 2>/dev/null || true; rm -rf "$dir"; docker rm -f "$container" >/dev/null 2>&1 || true; docker rmi "$image" >/dev/null 2>&1 || true; }
trap clear_away EXIT

docker run -d --name "$container" --network host --read-only --cap-drop ALL --security-opt no-new-privileges \
	-e DATABASE_URL="$POSTHASTE_TEST_DATABASE_URL" -e OUTBOX_MIGRATE=on -e OUTBOX_ADMIN_ADDR=127.0.0.1:19090 \
	-e OUTBOX_WEBHOOKS="greet=$(cat "$dir/url")" -e OUTBOX_WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw \
	-v "$dir/ca.pem:/etc/receiver/ca.pem:ro" -e SSL_CERT_DIR=/etc/receiver \
	"$image" >/dev/null
for _ in {1..100}; do
	health=$(docker exec "$container" /posthaste healthcheck 2>&1) && break
	[ "$(docker inspect -f '{{.State.Running}}' "$container")" = true ] || fail "it ended by itself"
	sleep 0.1
done
docker exec "$container" /posthaste healthcheck >/dev/null || fail "it is not ready after ten seconds: $health"
[ "$(docker inspect -f '{{.Config.User}}' "$container")" = 65532:65532 ] || fail "it runs as another user"
docker exec "$container" /posthaste migrate status >/dev/null || fail "its database is not migrated"

job=$(docker exec "$container" /posthaste enqueue greet '{"name": "Ada"}')
wait "$receiver" || fail "no webhook was received over TLS"
for _ in {1..100}; do
	state=$(docker exec "$container" /posthaste jobs show "$job")
	[[ $state == *succeeded* ]] && break
	sleep 0.1
done
[[ $state == *succeeded* ]] || fail "the job of the webhook is not done: $state"

began=$(date +%s)
docker stop -t 30 "$container" >/dev/null
took=$(($(date +%s) - began)) status=$(docker inspect -f '{{.State.ExitCode}}' "$container")
[ "$status" = 0 ] || fail "it ended with $status on SIGTERM"
[ "$took" -le 10 ] || fail "it took $took s to stop, and it had nothing to do"
echo "image: $image ran read-only and as nobody, was healthy, posted a webhook over TLS, and ended with 0 after SIGTERM"
