"""The admin: failed jobs as a list with retry and forget, and a link to the dashboard."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from qframe.django.failed_jobs import FailedAdminPage, act, chosen, find
from qframe.django.models import FailedJob, Queue
from qframe.exceptions import QframeError
from qframe.operations.failures import FailedState
from qframe.operations.jobs import shown_payload
from qframe.operations.one_job import attempts_of

_ACTIONS = {"retry": "change", "forget": "delete"}
"""The possible actions, and the permission each needs."""


class NothingToAdd(admin.ModelAdmin):
    """A model without a table."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 (Django's)
        """Returns false: nothing can be added."""
        return False


@admin.register(FailedJob)
class FailedJobAdmin(NothingToAdd):
    """Lists the failed jobs of all connections; only its actions change them."""

    def changelist_view(
        self,
        request: HttpRequest,
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Shows those that a filter chooses, and acts on the selected ones."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        words = request.GET.get("q", "")
        page, fault = FailedAdminPage([], "", []), ""
        try:
            page = chosen(words, request.GET.get("after", ""))
        except QframeError as error:
            fault = str(error)
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Failed jobs",
            "opts": self.model._meta,  # noqa: SLF001 (Django's own way)
            "rows": page.rows,
            "after": page.after,
            "silent": page.silent,
            "fault": fault,
            "words": words,
            "board": board_url(),
            "may_retry": self.has_change_permission(request),
            "may_forget": self.has_delete_permission(request),
        }
        return TemplateResponse(request, "qframe_admin/failed_jobs.html", context)

    def _act(self, request: HttpRequest) -> HttpResponse:
        name, uuids = request.POST.get("action", ""), request.POST.getlist("uuid")
        if name not in _ACTIONS:
            raise Http404
        may = {"change": self.has_change_permission, "delete": self.has_delete_permission}
        if not may[_ACTIONS[name]](request):
            raise PermissionDenied
        user: Any = getattr(request, "user", None)
        done, faults = act(name, uuids, str(user.get_username()))
        words = {"retry": "queued again", "forget": "forgotten"}[name]
        messages.info(request, f"{done} of {len(uuids)} failed jobs: {words}")
        for fault in faults:
            messages.error(request, fault)
        return HttpResponseRedirect(reverse("admin:qframe_failedjob_changelist"))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002 (Django's)
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Shows one: its error, its attempts, its payload without secrets."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        there = find(unquote(object_id))
        if there is None:
            raise Http404(f"there is no failed job {object_id}")
        record = there[1]
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": record.name,
            "opts": self.model._meta,  # noqa: SLF001 (Django's own way)
            "row": FailedState.of(record),
            "error": record.exception,
            "attempts": attempts_of(record.history),
            "payload": shown_payload(record.payload),
            "may_retry": self.has_change_permission(request),
            "may_forget": self.has_delete_permission(request),
        }
        return TemplateResponse(request, "qframe_admin/failed_job.html", context)

    def delete_view(
        self,
        request: HttpRequest,
        object_id: str,
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Shows no page: the list forgets."""
        del request, object_id, extra_context
        raise Http404

    history_view = delete_view


@admin.register(Queue)
class QueueAdmin(NothingToAdd):
    """Leads to the dashboard."""

    def changelist_view(
        self,
        request: HttpRequest,
        _extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Redirects to it, or shows how to mount it."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        where = board_url()
        if where is None:
            messages.warning(
                request,
                'mount the dashboard: path("admin/queues/", include("qframe.django.urls"))',
            )
            return HttpResponseRedirect(reverse("admin:index"))
        return HttpResponseRedirect(where)


def board_url() -> str | None:
    """Returns the address of the dashboard; None if it has none."""
    try:
        return str(reverse("qframe-board:board"))
    except NoReverseMatch:
        return None
