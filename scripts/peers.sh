#!/bin/sh
# Installs the peers of `make bench` that are Debian's, where they are missing and it can be done.
#
# The Python ones are installed by benchmarks/ itself. What is not there is said in its rows.
set -eu

! command -v sidekiq >/dev/null || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

echo "Installing ruby-sidekiq"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
install() {
    apt-get install -qq -y --no-install-recommends ruby-sidekiq >/dev/null 2>&1
}
install || { apt-get update -qq >/dev/null 2>&1 && install; } ||
    echo "apt-get could not install ruby-sidekiq: it is not measured." >&2
