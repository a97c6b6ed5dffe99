"""The payload: Laravel's JSON envelope, its encoding, encryption and signature."""

from qframe.payload import logs

logs.install()
