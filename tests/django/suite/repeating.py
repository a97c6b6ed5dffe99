"""A job is killed before the commits of Django and run again, also within a TestCase."""

from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from shop.models import Order

from qframe import Queueable
from qframe.testing import run

SETTINGS = {"default": "memory", "connections": {"memory": {"driver": "memory"}}}


class Mail(Queueable):
    def handle(self): ...


class Book(Queueable):
    def handle(self):
        with transaction.atomic():
            Order.objects.get_or_create(article="a")
            with transaction.atomic():
                Order.objects.create(article="b")
            transaction.on_commit(lambda: Mail.dispatch().send())
        Order.objects.filter(article="a").update(shipped=1)


def state():
    return sorted(Order.objects.values_list("article", "shipped"))


def reset():
    Order.objects.all().delete()


def refused():
    try:
        run(Book()).assert_repeatable(state, reset)
    except AssertionError as error:
        return str(error)
    raise AssertionError("it was repeatable")


@override_settings(QFRAME=SETTINGS)
class InATestCase(TestCase):
    def test_the_outermost_block_and_what_has_none_are_points(self):
        said = refused()
        assert "killed before the UPDATE that is committed by itself (repeating.py:" in said, said
        assert "2 of 3 points differ" in said, said


@override_settings(QFRAME=SETTINGS)
class InTransactions(TransactionTestCase):
    def test_what_follows_a_commit_is_a_point_of_its_own(self):
        said = refused()
        assert "killed before the dispatch of Mail (repeating.py:" in said, said
        assert "3 of 4 points differ" in said, said
