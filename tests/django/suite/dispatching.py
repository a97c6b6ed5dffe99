"""What a dispatch does in a transaction, in Django's TestCase and TransactionTestCase."""

from unittest import mock

from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, TestCase, TransactionTestCase, override_settings
from django.urls import path
from shop.jobs import Ship
from shop.models import Order
from shop.tasks import receipt

from qframe import QueueManager, Worker, WorkerOptions, batch, bulk, chain, manager
from qframe.testing import fake

HERE = {"driver": "database", "django": "default"}


def mode(name, **more):
    return override_settings(
        QFRAME={
            "default": "database",
            "connections": {"database": HERE},
            "DISPATCH": name,
            **more,
        }
    )


def size():
    return manager.default().connection().size()


def work():
    """Work in this thread until the queue is empty; gives the outcomes."""

    class Quiet(Worker):
        heeds_signals = False

    worker = Quiet(manager.default(), WorkerOptions(stop_when_empty=True))
    worker.run()
    return worker.outcomes


def ship(request):
    job = Ship.dispatch(order=1).id
    if "fail" in request.GET:
        raise KeyError
    return HttpResponse(f"{size()} {len(job)}")


urlpatterns = [path("ship/", ship)]


class InTestCase(TestCase):
    def test_callbacks_that_are_captured_push(self):
        with self.captureOnCommitCallbacks() as callbacks:
            job = Ship.dispatch(order=1).id
            assert len(job) == 36
            assert len(callbacks) == 0
        assert len(callbacks) == 1

    @override_settings(
        QFRAME={"default": "memory", "connections": {"memory": {"driver": "memory"}}}
    )
    def test_captured_and_executed(self):
        with self.captureOnCommitCallbacks(execute=True):
            Ship.dispatch(order=1)
            assert size() == 0
        assert size() == 1

    @override_settings(
        QFRAME={"default": "memory", "connections": {"memory": {"driver": "memory"}}}
    )
    def test_a_view_is_tested_as_any(self):
        with self.captureOnCommitCallbacks(execute=True):
            said = self.client.post("/orders/", {"article": "lamp"}).json()
        assert size() == 2
        assert receipt.get_result(said["task"]).kwargs == {"order": said["order"]}

    def test_a_fake_takes_it_at_once(self):
        with fake() as queue:
            Ship.dispatch(order=1)
        queue.assert_dispatched(Ship(order=1))


class InTransactions(TransactionTestCase):
    def tearDown(self):
        with override_settings(QFRAME={"connections": {"database": HERE}}):
            manager.default().connection("database").clear()

    def test_nothing_is_open_and_it_goes_at_once(self):
        Ship.dispatch(order=1)
        assert size() == 1

    def test_the_commit_pushes_and_the_id_is_known_before(self):
        with transaction.atomic():
            job = Ship.dispatch(order=1).track().id
            assert size() == 0
        found = manager.default().connection()
        assert size() == 1
        assert found.find(job) is not None

    def test_a_rollback_drops(self):
        for act in (lambda: Ship.dispatch(order=1), lambda: Ship.dispatch(order=1).send()):
            with self.assertRaises(KeyError), transaction.atomic():
                act()
                raise KeyError
        assert size() == 0

    def test_a_savepoint_drops_its_own(self):
        with transaction.atomic():
            Ship.dispatch(order=1)
            with self.assertRaises(KeyError), transaction.atomic():
                Ship.dispatch(order=2)
                raise KeyError
            Ship.dispatch(order=3)
        assert size() == 2

    def test_within_is_in_the_transaction_itself(self):
        with mode("within"):
            size()  # the tables are there
            with transaction.atomic():
                Ship.dispatch(order=1)
                with self.assertRaises(KeyError), transaction.atomic():
                    Ship.dispatch(order=2)
                    raise KeyError
                held = Ship.dispatch(order=3)
                task = receipt.enqueue(order=3)
                # Nobody else sees them before the commit, and this is it.
                with transaction.atomic():
                    count = transaction.get_connection().cursor()
                    count.execute("SELECT COUNT(*) FROM jobs")
                    assert count.fetchone() == (2,)
            del held  # dropped after the commit: that has pushed it
            assert size() == 3
            assert receipt.get_result(task.id).status == "READY"

    def test_a_fault_within_rolls_back(self):
        with mode("within"):
            size()
            with self.assertRaises(KeyError), transaction.atomic():
                Ship.dispatch(order=1).send()
                raise KeyError
            assert size() == 0

    def test_now(self):
        with mode("now", connections={"database": {"driver": "memory"}}), transaction.atomic():
            Ship.dispatch(order=1)
            assert size() == 1

    def test_one_dispatch_may_differ(self):
        memory = {"database": HERE, "other": {"driver": "memory"}}
        with mode("on_commit", connections=memory):
            size()
            with self.assertRaises(KeyError), transaction.atomic():
                Ship.dispatch(order=1).on_connection("other").before_commit().send()
                Ship.dispatch(order=2).within(transaction.get_connection())
                raise KeyError
            assert size() == 0
            assert manager.default().connection("other").size() == 1

    def test_bulk_chain_and_batch_follow(self):
        for name in ("on_commit", "within"):
            with self.subTest(name), mode(name):
                manager.default().connection().clear()
                with transaction.atomic():
                    ids = bulk([Ship(order=1), Ship(order=2)])
                    chain([Ship(order=3), Ship(order=4)]).dispatch()
                    made = batch([Ship(order=5), Ship(order=6)]).dispatch()
                assert len(set(ids)) == 2
                assert size() == 5
                assert made.fresh().total == 2
                manager.default().connection().clear()
                with self.assertRaises(KeyError), transaction.atomic():
                    bulk([Ship(order=1)])
                    chain([Ship(order=3)]).dispatch()
                    batch([Ship(order=5)]).dispatch()
                    raise KeyError
                assert size() == 0

    def test_a_worker_runs_what_was_committed(self):
        order = Order.objects.create(article="lamp")
        with transaction.atomic():
            Ship.dispatch(order=order.pk)
        assert work() == {"done": 1}
        order.refresh_from_db()
        assert order.shipped == 1

    @override_settings(ROOT_URLCONF="suite.dispatching")
    def test_atomic_requests_are_a_transaction(self):
        self.client.raise_request_exception = False
        with mock.patch.dict(connections.settings["default"], ATOMIC_REQUESTS=True):
            assert self.client.get("/ship/?fail=1").status_code == 500
            assert size() == 0
            assert self.client.get("/ship/").content == b"0 36"
        assert size() == 1

    async def test_an_async_view_dispatches(self):
        said = (await AsyncClient().post("/orders/async/", {"article": "lamp"})).json()
        assert len(said["job"]) == len(said["task"]) == 36


@override_settings(
    QFRAME={
        "default": "memory",
        "connections": {"memory": {"driver": "memory"}},
    },
    DATABASE_ROUTERS=[],
)
class TwoDatabases(TransactionTestCase):
    databases = {"default", "other"}

    def test_the_last_commit_pushes(self):
        with transaction.atomic(using="other"):
            with transaction.atomic():
                Ship.dispatch(order=1)
            assert size() == 0
        assert size() == 1
        manager.default().connection().clear()

    def test_one_rollback_drops(self):
        with (
            transaction.atomic(),
            self.assertRaises(KeyError),
            transaction.atomic(using="other"),
        ):
            Ship.dispatch(order=1)
            raise KeyError
        assert size() == 0

    def test_using_names_the_one_that_counts(self):
        with (
            mode("on_commit", default="memory", DISPATCH_USING="default", connections={}),
            transaction.atomic(using="other"),
        ):
            Ship.dispatch(order=1)
            assert size() == 1


class Settings(TestCase):
    def said(self, settings, number=0):
        with override_settings(QFRAME=settings):
            return [str(each.msg) for each in run_checks(tags=["qframe"])]

    def test_wrong_ones_are_one_line(self):
        near = {"connections": {"database": {"driver": "database", "django": "defualt"}}}
        for settings, words in (
            ({"defualt": "redis"}, "settings.QFRAME: unknown key 'defualt' (did you mean"),
            ({"default": "redsi"}, "unknown connection 'redsi' (did you mean 'redis'"),
            ({"DISPATCH": "sometimes"}, "DISPATCH is 'sometimes'; it is one of on_commit"),
            (near, "names 'defualt', which is not in DATABASES (did you mean 'default'"),
            ({"default": "redis", "DISPATCH": "within"}, "no outbox"),
            (3, "must be a dict"),
            ({"web": {"pasword": "x"}}, "settings.QFRAME: unknown key 'web.pasword'"),
        ):
            with self.subTest(words):
                (line,) = self.said(settings)
                assert words in line, line
                assert "\n" not in line

    def test_the_test_database_is_the_one_used(self):
        url = QueueManager().settings.connections["database"]["url"]
        assert "test" in url.rpartition("/")[2], url
