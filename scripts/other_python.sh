#!/bin/sh
# Runs the tests that need no server, and those of Django, on PostgreSQL, on the newest Python found
# besides the one of .venv: 3.11 or newer, under pyenv or on PATH. Says so, and does nothing, where
# there is none.
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
    tests/features tests/histories tests/testing tests/fastapi tests/flask \
    tests/examples/test_frameworks.py tests/test_*.py

# .venv has Django 5.2. 4.2 is the oldest that there is support for; it runs on Python 3.13 at most.
if .venv-other/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 14))'; then
    echo "With Django 4.2:"
    .venv-other/bin/python -m pip install -qq --disable-pip-version-check "Django>=4.2,<5"
    .venv-other/bin/python -m pytest -q -n 2 -m "not slow" tests/django
    .venv-other/bin/python -m pytest -q -n 2 tests/django/test_suite.py::test_the_suite
fi

# Django 6 has tasks of its own, and needs Python 3.12. In 6.0 @task takes no options.
.venv-other/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' || exit 0
.venv-other/bin/python -m pip uninstall -qq -y django-tasks
echo "With Django 6.0:"
.venv-other/bin/python -m pip install -qq --disable-pip-version-check "Django~=6.0.0"
.venv-other/bin/python -m pytest -q -n 2 tests/django/test_suite.py::test_the_suite
echo "With the newest Django 6, and with workers that are killed, and that try again what was late:"
.venv-other/bin/python -m pip install -qq --disable-pip-version-check "Django>=6.1,<7"
.venv-other/bin/python -m pytest -q -n 2 -m "not slow" tests/django
.venv-other/bin/python -m pytest -q -n 2 tests/django/test_suite.py::test_the_suite \
    tests/django/test_real.py::test_a_task_whose_worker_is_killed_runs_again \
    "tests/django/test_tasks_real.py::test_a_timeout_is_told[one]"

# Its tests of their backends are in its sdist.
version=$(.venv-other/bin/python -c 'import django; print(django.__version__)')
source=.venv-other/django-source
rm -rf "$source" && mkdir -p "$source"
.venv-other/bin/python -m pip download -qq --disable-pip-version-check --no-deps \
    --no-binary :all: "Django==$version" -d "$source"
tar -xzf "$source"/*.tar.gz -C "$source" --strip-components 1
.venv-other/bin/python tests/django/upstream.py "$source/tests"
