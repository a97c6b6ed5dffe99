#!/bin/sh
# Installs what the tests run, where it is missing: the servers of the drivers, PHP, Node, Ruby, promtool, the compiler
# that makes what sets beanstalkd's clock forward, and the browser that looks at the web view.
#
# Nothing is started: the tests start each server themselves, in a temporary folder and on a
# free port, so the machine's own services and their standard ports are left alone.
set -eu

policy=/usr/sbin/policy-rc.d # what Debian's packages ask before they start a daemon
aside=$policy.before-qframe

is_there() {
    case $1 in
        redis-server) command -v redis-server ;;
        postgresql) command -v postgres || ls /usr/lib/postgresql/*/bin/postgres ;;
        mariadb-server) command -v mariadbd || ls /usr/sbin/mariadbd ;;
        pgbouncer) command -v pgbouncer || ls /usr/sbin/pgbouncer ;;
        beanstalkd) command -v beanstalkd ;;
        rabbitmq-server) command -v rabbitmq-server || ls /usr/lib/rabbitmq/bin/rabbitmq-server ;;
        nats-server) command -v nats-server || ls /usr/sbin/nats-server ;;
        php-cli) command -v php ;;
        nodejs) command -v node ;;
        ruby | curl) command -v "$1" ;;
        prometheus) command -v promtool ;;
        gcc) command -v cc ;;
        libc6-dev) [ -e /usr/include/dlfcn.h ] ;;
        php-redis) php -r 'exit(extension_loaded("redis") ? 0 : 1);' ;;
        php-pgsql) php -r 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);' ;;
        php-mysql) php -r 'exit(extension_loaded("pdo_mysql") ? 0 : 1);' ;;
        php-sqlite3) php -r 'exit(extension_loaded("pdo_sqlite") ? 0 : 1);' ;;
        *) [ "$(dpkg-query -W -f '${Status}' "$1")" = "install ok installed" ] ;;
    esac >/dev/null 2>&1
}

forbid_starting() {
    rm -f "$aside"
    if [ -e "$policy" ]; then
        status=0
        "$policy" beanstalkd start >/dev/null 2>&1 || status=$?
        [ "$status" -ne 101 ] || return 0 # forbidden already
        cp -pP "$policy" "$aside"
    fi
    trap 'exit 1' HUP INT TERM
    trap allow_starting EXIT
    rm -f "$policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

allow_starting() {
    if [ -e "$aside" ]; then mv -f "$aside" "$policy"; else rm -f "$policy"; fi
}

install() {
    # shellcheck disable=SC2086  # a list of names
    apt-get install -qq -y --no-install-recommends $missing >"$log" 2>&1
}

missing=
for package in redis-server postgresql mariadb-server pgbouncer beanstalkd rabbitmq-server nats-server \
    php-cli php-redis php-pgsql php-mysql php-sqlite3 php-laravel-framework php-pda-pheanstalk nodejs ruby curl \
    prometheus gcc libc6-dev chromium fonts-dejavu-core; do
    is_there "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing:$missing. Install them as root (Debian: apt-get install$missing)." >&2
    exit 1
fi

echo "Installing$missing"
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
log=$(mktemp)
forbid_starting
install || { apt-get update -qq && install; } || {
    tail -n 20 "$log" >&2
    echo "apt-get could not install$missing (all of it is in $log)." >&2
    exit 1
}
rm -f "$log"
