#!/bin/sh
# Runs the tests that need no server on the newest Python found besides the one of .venv: 3.11 or
# newer, under pyenv or on PATH. Says so, and does nothing, where there is none.
set -eu

own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)
found=
for version in 3.14 3.13 3.12 3.11; do
    [ "$version" != "$own" ] || continue
    for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python"$version" \
        "$(command -v "python$version" || true)"; do
        if [ -x "$python" ] && "$python" -c 'import sqlite3, ssl' 2>/dev/null; then
            found=$python
            break 2
        fi
    done
done
if [ -z "$found" ]; then
    echo "There is no other Python than $own here: nothing was run."
    exit 0
fi

echo "On $("$found" --version):"
sh scripts/venv.sh "$found" .venv-other
.venv-other/bin/python -m pip install -qq --disable-pip-version-check \
    -c constraints.txt -e '.[dev,postgres,mariadb]'
.venv-other/bin/python -m pytest -q -n 2 --dist worksteal -m "not slow" \
    tests/features tests/histories tests/testing tests/test_*.py
