"""The admin and the dashboard: who sees what, and what acting does."""

from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, TransactionTestCase
from shop.jobs import Refuse, Ship

from qframe import manager
from qframe.payload.timing import iso
from suite.dispatching import size, work

LIST = "/admin/qframe/failedjob/"
HERE = {"Sec-Fetch-Site": "same-origin"}


class Admin(TransactionTestCase):
    def tearDown(self):
        manager.default().connection().clear()
        manager.default().failed_store().flush()

    def user(self, *permissions, staff=True):
        found = User.objects.create_user(f"u{User.objects.count()}", is_staff=staff)
        for name in permissions:
            found.user_permissions.add(Permission.objects.get(codename=name))
        self.client.force_login(found)
        return found

    def fail(self, reason="no such address"):
        uuid = Refuse.dispatch(reason=reason).send()
        work()
        return uuid

    def test_the_list_shows_and_retries(self):
        uuid = self.fail("<b>bold</b>")
        self.user("view_failedjob", "change_failedjob")
        page = self.client.get(LIST)
        self.assertContains(page, "shop.jobs.Refuse")
        self.assertContains(page, "&lt;b&gt;bold")
        self.assertNotContains(page, "Forget the selected")
        shown = self.client.get(f"{LIST}{uuid}/change/")
        self.assertContains(shown, "ValueError")
        (record,) = manager.default().failed_store().page(9)
        (attempt,) = record.history.attempts
        self.assertContains(shown, f"<td>{iso(attempt.started_at)}</td>", html=True)
        self.assertContains(shown, f"<td>{iso(attempt.ended_at)}</td>", html=True)
        assert self.client.post(LIST, {"action": "forget", "uuid": uuid}).status_code == 403
        said = self.client.post(LIST, {"action": "retry", "uuid": uuid}, follow=True)
        self.assertContains(said, "1 of 1 failed jobs: queued again")
        assert size() == 1
        assert manager.default().failed_store().count() == 0

    def test_forget(self):
        uuid = self.fail()
        self.user("view_failedjob", "delete_failedjob")
        self.client.post(LIST, {"action": "forget", "uuid": [uuid, "other"]})
        assert manager.default().failed_store().count() == 0
        assert self.client.get(f"{LIST}{uuid}/change/").status_code == 404

    def test_filters_and_pages(self):
        uuids = [self.fail(f"reason {number}") for number in range(3)]
        self.user("view_failedjob")
        page = self.client.get(LIST, {"q": "error:'reason 1'".replace("'", '"')})
        self.assertContains(page, uuids[1])
        self.assertNotContains(page, uuids[0])
        self.assertContains(self.client.get(LIST, {"q": "nope:1"}), "errornote")

    def test_pages(self):
        from unittest import mock

        uuids = [self.fail(f"reason {number}") for number in range(3)]
        self.user("view_failedjob")
        with mock.patch("qframe.django.failed_jobs._PAGE", 2):
            first = self.client.get(LIST)
            second = self.client.get(LIST, {"after": first.context["after"]})
        seen = [row.uuid for page in (first, second) for row in page.context["rows"]]
        assert sorted(seen) == sorted(uuids)

    def test_who_may_not(self):
        uuid = self.fail()
        self.user()
        assert self.client.get(LIST).status_code == 403
        assert self.client.get(f"{LIST}{uuid}/change/").status_code == 403
        assert self.client.get("/admin/queues/").status_code == 403
        self.user("view_failedjob", "view_queue", staff=False)
        assert self.client.get(LIST).status_code == 302
        assert self.client.get("/admin/queues/").status_code == 302

    def test_the_index_leads_to_the_page(self):
        self.user("view_queue")
        index = self.client.get("/admin/")
        self.assertContains(index, "/admin/qframe/queue/")
        there = self.client.get("/admin/qframe/queue/", follow=True)
        assert there.redirect_chain[-1][0] == "/admin/queues/"
        self.assertContains(there, "qframe")
        self.assertContains(self.client.get("/admin/queues/queues"), "database")
        style = self.client.get("/admin/queues/static/app.css")
        assert style["Content-Type"].startswith("text/css")

    def test_acting_on_the_page(self):
        Ship.dispatch(order=1).send()
        wanted = {"connection": "database", "queue": "default"}
        for permissions, headers, code in (
            (("view_queue",), HERE, 403),
            (("view_queue", "change_queue"), {}, 403),
            (("view_queue", "change_queue"), {"Sec-Fetch-Site": "cross-site"}, 403),
            (("view_queue", "change_queue"), HERE, 200),
        ):
            self.user(*permissions)
            meta = {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in headers.items()}
            for act in ("pause", "resume"):
                said = self.client.post(
                    f"/admin/queues/api/v1/actions/{act}", wanted, "application/json", **meta
                )
                assert said.status_code == code, said.content

    async def test_on_asgi(self):
        from asgiref.sync import sync_to_async

        user = await sync_to_async(User.objects.create_superuser)("root")
        client = AsyncClient()
        await sync_to_async(client.force_login)(user)
        page = await client.get("/admin/queues/")
        assert page.status_code == 200, page
        live = await client.get("/admin/queues/live?page=overview")
        assert live.status_code in {200, 400, 404}
