"""The web application: it books the table at once and leaves the mail to a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from examples.webapp.jobs import SendConfirmation
from qframe import dispatch, manager, web

PAGE = """<!doctype html>
<title>Book a table</title>
<h1>Book a table</h1>
<form method="post" action="/tables">
  <p><label>Name <input name="guest" required></label>
  <p><label>Mail <input name="email" type="email" required></label>
  <p><label>Guests <input name="seats" type="number" min="1" max="12" value="2"></label>
  <p><label>Evening <input name="evening" type="date" required></label>
  <p><button>Book</button>
</form>
"""


class Booking(BaseModel):
    """What the form sends."""

    guest: Annotated[str, Field(min_length=1, max_length=100)]
    email: Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=200)]
    seats: Annotated[int, Field(ge=1, le=12)]
    evening: date


async def page(_request: Request) -> Response:
    """Show the form."""
    return HTMLResponse(PAGE)


async def book(request: Request) -> Response:
    """Take a booking; when this answers, the mail is queued but not sent."""
    form = dict(parse_qsl((await request.body()).decode()))
    try:
        booking = Booking.model_validate(form)
    except ValidationError as error:
        faults = [f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
        return PlainTextResponse("\n".join(faults), status_code=422)
    # A real application would now write the booking into its own database.
    # `await` pushes the job in a thread, so that the event loop goes on, and raises if it cannot.
    await dispatch(SendConfirmation(**booking.model_dump()))
    return PlainTextResponse(f"Thank you, {booking.guest}: the confirmation is on its way.\n", 202)


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Open the queue before the first request instead of in it."""
    await asyncio.to_thread(manager.default().connection().backend.check)
    yield


def authorize(request: Request) -> web.Access:
    """Let this machine see the queues, and act; a real application would look at its session."""
    return "act" if request.client is not None and request.client.host == "127.0.0.1" else "none"


app = Starlette(
    routes=[
        Route("/", page),
        Route("/tables", book, methods=["POST"]),
        Mount("/queues", web.app(authorize=authorize)),
    ],
    lifespan=lifespan,
)
