#!/bin/sh
# What the official image's entrypoint does, as far as pgdocker asks for it.
set -eu
echo "$POSTGRES_PASSWORD" >/tmp/password
initdb --no-sync -D /tmp/data -U "$POSTGRES_USER" --pwfile /tmp/password -A scram-sha-256 -E UTF8 --locale=C
echo 'host all all all scram-sha-256' >>/tmp/data/pg_hba.conf
exec "$@" -D /tmp/data -c listen_addresses='*' -c unix_socket_directories=/tmp
