"""The dashboard's addresses: `path("admin/queues/", include("qframe.django.urls"))`.

They come before the admin's own, which match whatever begins with `admin/`.
"""

from __future__ import annotations

from django.urls import URLPattern, path

from qframe.django.board import board

app_name = "qframe-board"
urlpatterns: list[URLPattern] = [
    path("", board, name="board"),
    path("<path:path>", board),
]
