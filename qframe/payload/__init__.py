"""The envelope on the wire, and what is done to its bytes."""

from qframe.payload import logs

logs.install()
