#!/bin/sh
# Installs what the peers of `make bench` need of Debian's, where it is missing and it can be done.
#
# The Python ones and those of npm are installed by benchmarks/ itself. What is not there is said in
# its rows.
set -eu

missing=
command -v sidekiq >/dev/null || missing="$missing ruby-sidekiq"
# What Django's client of MariaDB is compiled with.
command -v mariadb_config >/dev/null || missing="$missing libmariadb-dev"
command -v pkg-config >/dev/null || missing="$missing pkg-config"
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

echo "Installing$missing"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
install() {
    # shellcheck disable=SC2086  # a list of names
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1
}
install || { apt-get update -qq >/dev/null 2>&1 && install; } ||
    echo "apt-get could not install$missing: some peers are not measured." >&2
