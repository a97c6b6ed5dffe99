#!/bin/sh
# Makes a virtual environment with pip in it, also where ensurepip is missing
# (Debian splits it off into python3-venv).
#
#   sh scripts/venv.sh PYTHON FOLDER
#
# An environment that is there already, whole, and of the same Python is kept.
set -eu

python=$1
folder=$2

die() {
    echo "$*" >&2
    exit 1
}

identity() {
    "$1" -c 'import os, sys; print(os.path.realpath(sys.base_prefix), sys.version)' 2>/dev/null
}

make_with_ensurepip() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null &&
        "$python" -m venv --clear "$folder"
}

make_with_pip_from_outside() {
    "$python" -c 'import pip, venv' 2>/dev/null &&
        "$python" -m venv --clear --without-pip "$folder" &&
        "$python" -m pip --python "$folder/bin/python" install -qq pip
}

make_after_installing_ensurepip() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    echo "Installing $package (it brings ensurepip)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qq -y "$package" >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -qq -y "$package" >/dev/null; } || return 1
    make_with_ensurepip
}

command -v "$python" >/dev/null ||
    die "There is no $python here: install Python 3.11 or newer, or name one: make PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "qframe needs Python 3.11 or newer and $python is older: name another, make PYTHON=..."

if [ -x "$folder/bin/python" ] &&
    [ "$(identity "$folder/bin/python")" = "$(identity "$python")" ] &&
    "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
make_with_ensurepip || make_with_pip_from_outside || make_after_installing_ensurepip ||
    die "$python cannot make a virtual environment: install $package (apt-get install $package)."
