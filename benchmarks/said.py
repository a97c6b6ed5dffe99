"""What the programs compared say of themselves."""

from __future__ import annotations

import shutil
import subprocess

_ABSENT = "not installed"
_PACKAGE = ("dpkg-query", "-W", "-f", "${Version}")
_VERSIONS = {
    "Redis": (("redis-server", "--version"), 2),
    "beanstalkd": (("beanstalkd", "-v"), 1),
    "PostgreSQL": (("psql", "--version"), 2),
    "MariaDB": (("mariadb", "--version"), 4),
    "RabbitMQ": ((*_PACKAGE, "rabbitmq-server"), 0),
    "Laravel": ((*_PACKAGE, "php-laravel-framework"), 0),
    "Pheanstalk": ((*_PACKAGE, "php-pda-pheanstalk"), 0),
    "PHP": (("php", "--version"), 1),
    "Sidekiq": (("sidekiq", "--version"), 1),
    "Ruby": (("ruby", "--version"), 1),
}
"""What prints the version of each, and the place of the word that it is."""


def said(*command: str, word: int = 0) -> str:
    """Run a program and give a word of what it prints: its version."""
    if shutil.which(command[0]) is None:
        return _ABSENT
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return words[word] if len(words) > word else _ABSENT


def versions(*names: str) -> dict[str, str]:
    """Give the versions of what is compared."""
    asked = {name: _VERSIONS[name] for name in names}
    return {name: said(*how, word=word).removeprefix("v=") for name, (how, word) in asked.items()}
