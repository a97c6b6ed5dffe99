"""The job: ask the service about one weather station."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from qframe import Queueable
from qframe.middleware import Limit, RateLimited, ThrottlesExceptions

TOO_MANY_REQUESTS = 429


class FetchWeather(Queueable):
    """Write what one station measures to a file of its own.

    The limit is below what the service allows, and lets few through at once, since requests are on
    their way for a moment, some longer than others. While the service is down, jobs wait and do not
    use up the limit: that is why the one middleware is around the other.
    """

    url: str
    station: int
    folder: Path

    tries = 5
    backoff = 0.2
    timeout = 10
    middleware = (
        ThrottlesExceptions(3, per=1, name="weather", when=OSError),
        RateLimited(Limit(2, per=0.25), name="weather"),
    )

    def handle(self) -> None:
        """Do it; a second run writes the same file."""
        try:
            with urlopen(f"{self.url}/stations/{self.station}", timeout=5) as answer:  # noqa: S310 (http: it is our own)
                weather = json.load(answer)
        except HTTPError as refused:
            refused.close()
            if refused.code == TOO_MANY_REQUESTS:  # somebody else uses the service, too
                self.release(1)
                return
            raise
        waits = self.job.history.releases
        text = json.dumps({**weather, "attempts": self.attempts - waits, "waits": waits})
        file = self.folder / f"{self.station}.json"
        unfinished = file.with_suffix(".part")
        unfinished.write_text(text)
        unfinished.replace(file)
