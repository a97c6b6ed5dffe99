"""Jobs that run in the caller's thread leave the caller's connections, and transactions, alone."""

import asyncio
import signal

from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from shop.models import Order

from qframe import Queueable, abulk, bulk, dispatch, dispatch_sync, manager
from qframe.testing import drain, run
from suite.dispatching import work

HERE = {"driver": "database", "django": "default"}
SETTINGS = {
    "default": "sync",
    "jobs": ["suite.calling"],
    # A test's transaction keeps everybody else from writing into SQLite's file.
    "metrics": connection.vendor != "sqlite",
    "connections": {"database": HERE, "memory": {"driver": "memory"}, "sync": {"driver": "sync"}},
}
looks = []


def look():
    """Note what a job sees: the connection it has, and the orders there are in it."""
    count = Order.objects.count()
    looks.append((identity(), count))


def identity():
    """Tell the connection of this thread from another that was made in its place."""
    return id(connection.connection)


class Look(Queueable):
    """See that, and place an order."""

    def handle(self):
        look()
        Order.objects.create(article="of the job")

    def succeeded(self):
        look()


class LookOnLoop(Queueable):
    """The same on an event loop."""

    async def handle(self):
        await sync_to_async(look)()
        await Order.objects.acreate(article="of the job")

    async def succeeded(self):
        await sync_to_async(look)()


class Refuse(Queueable):
    """Fail, and tell of it."""

    def handle(self):
        raise ValueError("no such address")

    def failed(self, error):
        look()


def by_drain(job):
    dispatch(job).on_connection("memory").before_commit().send()
    assert drain("memory").done == 1


def by_worker(job):
    with override_settings(QFRAME={**SETTINGS, "default": "memory"}):
        dispatch(job).before_commit().send()
        assert work() == {"done": 1}


def by_job_of_a_worker(job):
    """Have it run inside of a job."""
    with override_settings(QFRAME={**SETTINGS, "default": "memory"}):
        Outer.job = job
        dispatch(Outer()).before_commit().send()
        assert drain().done == 1


class Outer(Queueable):
    def handle(self):
        with transaction.atomic():
            dispatch_sync(type(self).job)
            Order.objects.count()


async def by_await(job):
    await dispatch(job)


async def by_awaited_bulk(job):
    await abulk([job])


async def by_bulk_in_a_thread(job):
    assert len(await sync_to_async(bulk)([job])) == 1


async def by_call_on_loop(job):
    assert asyncio.get_running_loop()
    dispatch_sync(job)


WAYS = {
    "dispatch_sync": dispatch_sync,
    "sync": lambda job: dispatch(job).before_commit().send(),
    "dropped": lambda job: (dispatch(job).before_commit(), None)[1],
    "bulk": lambda job: manager.default().connection("sync").push(job),
    "run": lambda job: run(job).assert_done(),
    "drain": by_drain,
    "worker": by_worker,
    "nested": by_job_of_a_worker,
}
AWAITED = {"await": by_await, "bulk": by_awaited_bulk, "thread": by_bulk_in_a_thread}
JOBS = (Look, LookOnLoop)


def ways():
    """Give every way to have a job run in the caller's thread, with each kind of job."""
    for kind in JOBS:
        for name, way in WAYS.items():
            yield f"{name}, {kind.__name__}", lambda way=way, kind=kind: way(kind())
        for name, way in AWAITED.items():
            yield (
                f"await {name}, {kind.__name__}",
                lambda way=way, kind=kind: async_to_sync(way)(kind()),
            )
    yield "on a loop", lambda: async_to_sync(by_call_on_loop)(LookOnLoop())


@override_settings(QFRAME={**SETTINGS, "DISPATCH": "now"})
class InATest(TestCase):
    def test_the_tests_transaction_is_the_jobs(self):
        for number, (name, act) in enumerate(ways()):
            with self.subTest(name):
                looks.clear()
                Order.objects.create(article="of the caller")
                act()
                own = identity()
                assert looks == [(own, 2 * number + 1), (own, 2 * number + 2)], looks
                assert Order.objects.count() == 2 * number + 2

    def test_one_that_fails_leaves_it_too(self):
        Order.objects.create(article="of the caller")
        looks.clear()
        with self.assertRaises(ValueError):
            dispatch_sync(Refuse())
        run(Refuse()).assert_failed()
        assert looks == [(identity(), 1)] * 2

    def test_a_transaction_that_is_rolled_back_takes_it_along(self):
        for name, act in ways():
            with self.subTest(name):
                with self.assertRaises(KeyError), transaction.atomic():
                    act()
                    raise KeyError
                assert Order.objects.count() == 0

    async def test_an_async_test(self):
        await Order.objects.acreate(article="of the caller")
        for kind in JOBS:
            for way in AWAITED.values():
                looks.clear()
                before = await Order.objects.acount()
                await way(kind())
                own = await sync_to_async(identity)()
                assert looks == [(own, before), (own, before + 1)], looks


@override_settings(QFRAME=SETTINGS)
class Outside(TransactionTestCase):
    """Outside of a transaction as well: a connection is more than its transactions."""

    def test_the_connection_is_the_same(self):
        Order.objects.count()
        own = connection.connection
        for name, act in ways():
            with self.subTest(name):
                looks.clear()
                with transaction.atomic():
                    act()
                act()
                assert connection.connection is own
                assert {place for place, _ in looks} == {id(own)}

    def test_what_is_read_piece_by_piece_goes_on(self):
        Order.objects.bulk_create(Order(article=str(n)) for n in range(10))
        for name, act in ways():
            with self.subTest(name):
                articles = []
                for order in Order.objects.exclude(article="of the job").iterator(chunk_size=2):
                    articles.append(order.article)
                    if len(articles) == 3:
                        act()
                assert len(articles) == 10

    def test_a_temporary_table_and_the_log_of_queries_stay(self):
        def run_sql(words):
            with connection.cursor() as cursor:
                cursor.execute(words)

        run_sql("CREATE TEMPORARY TABLE basket (id INTEGER)")
        for name, act in ways():
            with self.subTest(name), CaptureQueriesContext(connection) as queries:
                run_sql("INSERT INTO basket VALUES (1)")
                act()
                run_sql("INSERT INTO basket VALUES (2)")
                mine = [each["sql"] for each in queries if "basket" in each["sql"]]
                assert len(mine) == 2, mine
        run_sql("DROP TABLE basket")

    def test_without_autocommit(self):
        connection.set_autocommit(False)
        try:
            Order.objects.create(article="of the caller")
            dispatch_sync(Look())
            connection.rollback()
        finally:
            connection.set_autocommit(True)
        assert Order.objects.count() == 0

    def test_a_request_under_asgi_has_a_thread_of_its_own(self):
        async def request(way, kind):
            async with ThreadSensitiveContext():
                own = await sync_to_async(lambda: connection.ensure_connection() or identity())()
                looks.clear()
                await way(kind())
                assert [place for place, _ in looks] == [own] * 2, looks
                await sync_to_async(connections.close_all)()

        for name, way in AWAITED.items():
            for kind in JOBS:
                with self.subTest(f"{name}, {kind.__name__}"):
                    asyncio.run(request(way, kind))
        with self.subTest("on a loop"):
            asyncio.run(request(by_call_on_loop, LookOnLoop))

    def test_one_that_is_interrupted_cleans_up(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with self.assertRaises(KeyboardInterrupt):
                dispatch_sync(Sleep())
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [order.article for order in Order.objects.all()] == ["left behind"]


class Sleep(Queueable):
    async def handle(self):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            await asyncio.sleep(60)
        finally:
            await Order.objects.acreate(article="left behind")
