"""The backend of `django.tasks`: results, retries, signals, options, checks."""

import sys
from datetime import timedelta
from unittest import skipIf

import django
from django.core.checks import run_checks
from django.test import TransactionTestCase, override_settings
from django.utils import timezone
from shop import tasks
from shop.models import Order
from shop.tasks import (
    catalogue,
    catalogue_on_loop,
    count,
    receipt,
    stubborn,
    unwilling,
    unwilling_on_loop,
)

from qframe import Cancelling, JobCancelled, cancel, manager
from qframe.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from qframe.django.tasks import QframeTask
from qframe.exceptions import ResultTooLarge
from qframe.failed.retry import retry
from suite.dispatching import size, work

BACKEND = "qframe.django.tasks.QframeBackend"


def options(**given):
    return override_settings(
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": given}}
    )


class Tasks(TransactionTestCase):
    def tearDown(self):
        manager.default().connection().clear()

    def test_a_task_runs_and_its_result_is_kept(self):
        order = Order.objects.create(article="lamp")
        result = receipt.enqueue(order=order.pk)
        assert (result.status, result.attempts) == ("READY", 0)
        assert receipt.get_result(result.id) == result
        assert work() == {"done": 1}
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 1)
        assert result.return_value == f"receipt {order.pk}"
        assert result.enqueued_at <= result.started_at <= result.finished_at

    def test_a_coroutine(self):
        result = count.enqueue()
        work()
        result.refresh()
        assert result.return_value == 0

    def test_every_attempt_is_told(self):
        with options(tries=3, backoff=0):
            result = stubborn.enqueue(3)
            work()
            result.refresh()
        assert result.status == "SUCCESSFUL", result
        assert result.return_value == 3
        assert len(result.worker_ids) == 3
        assert [each.exception_class for each in result.errors] == [ValueError] * 2
        assert "ValueError: attempt 2" in result.errors[1].traceback

    def test_a_final_failure(self):
        told = []
        with options(tries=2):
            result = stubborn.enqueue(9)

            def hear(task_result, **_):
                told.append((task_result.status, len(task_result.errors)))

            task_finished.connect(hear)
            self.addCleanup(task_finished.disconnect, hear)
            work()
            result.refresh()
        assert (result.status, len(result.errors), result.attempts) == ("FAILED", 2, 2)
        assert told == [("FAILED", 2)]

    def test_a_retry_by_hand_keeps_what_was(self):
        result = stubborn.enqueue(1000)
        work()
        queues = manager.default()
        store = queues.failed_store()
        assert retry(queues, store, store.find(result.id))
        result.refresh()
        assert (result.status, result.finished_at, len(result.errors)) == ("READY", None, 1)
        work()
        result.refresh()
        assert (result.status, len(result.errors), result.attempts) == ("FAILED", 2, 2)
        store.flush()

    def test_a_cancelled_one_has_failed(self):
        result = receipt.enqueue(order=1)
        cancel(result.id)
        result.refresh()
        assert result.status == "FAILED"
        assert result.errors[0].exception_class is JobCancelled

    def test_what_cannot_be_kept_fails_at_once(self):
        for task, pages, kind, words in (
            (catalogue, 65_535, ResultTooLarge, "store it (a model, a file) and return its key"),
            (
                catalogue_on_loop,
                65_535,
                ResultTooLarge,
                "returned 65,537 bytes of JSON, and 65,536",
            ),
            (catalogue, 0, TypeError, "Unsupported type"),
        ):
            with self.subTest(task.name, pages=pages), options(tries=3):
                result = task.enqueue(pages)
                assert work() == {"failed": 1}
                result.refresh()
                assert (result.status, result.attempts) == ("FAILED", 1)
                (error,) = result.errors
                assert error.exception_class is kind
                assert words in error.traceback, error.traceback
        result = catalogue.enqueue(65_534)
        work()
        result.refresh()
        assert len(result.return_value) == 65_534
        manager.default().failed_store().flush()

    def test_options_of_one_task(self):
        with options(tries=1, tasks={"shop.tasks.stubborn": {"tries": 2}}):
            result = stubborn.enqueue(2)
            work()
            result.refresh()
        assert result.return_value == 2

    def test_options_of_a_decorator(self):
        task = QframeTask(
            func=stubborn.func, priority=0, backend="default", queue_name="default",
            run_after=None, takes_context=True, tries=2,
        )  # fmt: skip
        assert task.declared() == {"tries": 2}
        with self.assertRaisesMessage(InvalidTask, "tries"):
            QframeTask(
                func=stubborn.func, priority=0, backend="default", queue_name="default",
                run_after=None, takes_context=True, tries=-2,
            )  # fmt: skip

    @skipIf(django.VERSION[:2] == (6, 0), "Django 6.0's decorator takes no options")
    def test_a_decorator_takes_options(self):
        result = tasks.twice.enqueue()
        work()
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 2), result

    def test_signals(self):
        told = []
        for signal in (task_enqueued, task_started, task_finished):

            def hear(sender, task_result, signal=signal, **_):
                told.append((signal, sender.__name__, str(task_result.status)))

            signal.connect(hear, weak=False)
            self.addCleanup(signal.disconnect, hear)
        receipt.enqueue(order=1)
        work()
        name = "QframeBackend"
        assert told == [
            (task_enqueued, name, "READY"),
            (task_started, name, "RUNNING"),
            (task_finished, name, "SUCCESSFUL"),
        ]

    def test_an_end_that_is_no_failure_is_told_once(self):
        told = []

        def hear(task_result, **_):
            (error,) = task_result.errors
            assert sys.exc_info()[0] is error.exception_class
            told.append((task_result.id, task_result.status, error.exception_class_path))

        task_finished.connect(hear)
        self.addCleanup(task_finished.disconnect, hear)
        skipped = [unwilling.enqueue(), unwilling_on_loop.enqueue()]
        assert work() == {"skipped": 2}
        removed = receipt.enqueue(order=1)
        cancel(removed.id)
        assert cancel(removed.id) is Cancelling.ABSENT
        cleared = receipt.enqueue(order=2)
        manager.default().connection().clear()
        assert work() == {}
        assert told == [
            *((each.id, "FAILED", "qframe.exceptions.DontHandle") for each in skipped),
            *((each.id, "FAILED", "qframe.exceptions.JobCancelled") for each in (removed, cleared)),
        ]
        for each in (*skipped, removed, cleared):
            each.refresh()
            assert each.finished_at is not None

    def test_a_receiver_that_raises_does_not_undo_a_cancellation(self):
        def hear(**_):
            raise KeyError("of the receiver")

        task_finished.connect(hear)
        self.addCleanup(task_finished.disconnect, hear)
        result = receipt.enqueue(order=1)
        with self.assertLogs("qframe", "ERROR") as logged:
            assert cancel(result.id) is Cancelling.REMOVED
        assert "of the receiver" in logged.output[0]

    def test_deferred_and_on_a_queue(self):
        later = timezone.now() + timedelta(hours=1)
        result = receipt.using(run_after=later, queue_name="slow").enqueue(order=1)
        sizes = manager.default().connection().sizes("slow")
        assert (sizes.ready, sizes.delayed) == (0, 1)
        assert abs(receipt.get_result(result.id).task.run_after - later) < timedelta(seconds=1)
        manager.default().connection().clear("slow")

    @override_settings(USE_TZ=False, TIME_ZONE="Asia/Kolkata")
    def test_times_without_zones_are_the_projects_own(self):
        later = timezone.now() + timedelta(hours=1)
        assert later.tzinfo is None
        result = receipt.using(run_after=later).enqueue(order=1)
        assert work() == {}
        found = receipt.get_result(result.id)
        assert abs(found.task.run_after - later) < timedelta(seconds=1), found
        assert timedelta(0) <= timezone.now() - found.enqueued_at < timedelta(minutes=1), found
        delayed = manager.default().connection().find(result.id)
        assert delayed is not None

    def test_priority_where_the_connection_has_it(self):
        assert task_backends["default"].supports_priority is True
        assert receipt.using(priority=5).priority == 5
        with options(connection="sync"):
            assert task_backends["default"].supports_priority is False
            with self.assertRaises(InvalidTask):
                receipt.using(priority=5)

    def test_a_missing_result(self):
        for identity in ("no", "", "x" * 1000):
            with self.assertRaises(TaskResultDoesNotExist):
                receipt.get_result(identity)

    def test_checks(self):
        for given, words in (
            ({"trise": 3}, "unknown option 'trise' (did you mean 'tries'?)"),
            ({"tries": "x"}, "tries"),
            ({"tasks": {"a.b": {"tires": 1}}}, "unknown option 'tires'"),
            ({"connection": "redsi"}, "unknown connection 'redsi'"),
            ({"connection": "sync"}, "keeps no jobs"),
        ):
            with self.subTest(words), options(**given):
                found = [*task_backends["default"].check()]
                assert len(found) == 1, found
                assert words in str(found[0].msg), found
        assert run_checks() == []
        assert size() == 0
