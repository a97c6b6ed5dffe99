"""Jobs with models of Django as arguments, which travel as their keys."""

import json
import uuid

from asgiref.sync import sync_to_async
from django.db import connection, models
from django.test import TestCase, TransactionTestCase, override_settings
from shop.models import Order

from qframe import (
    Flow,
    ModelMissing,
    Queueable,
    batch,
    bulk,
    chain,
    dispatch,
    dispatch_sync,
    queueable,
    wait_for,
)
from qframe.exceptions import InvalidJob
from qframe.operations.jobs import shown_payload
from qframe.payload import envelope
from qframe.testing import drain, fake, run
from suite.calling import HERE

SETTINGS = {
    "default": "memory",
    "jobs": ["suite.modelling"],
    "metrics": False,
    "DISPATCH": "now",
    "connections": {
        "database": HERE,
        "memory": {"driver": "memory"},
        "many": {"driver": "memory"},
    },
}
seen = []


class Hidden(models.Manager):
    def get_queryset(self):
        return super().get_queryset().filter(pk=0)


class Parcel(models.Model):
    """Its manager hides all its rows; its key is a UUID."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)

    objects = Hidden()

    class Meta:
        app_label = "shop"


class Label(Queueable):
    order: Order
    others: list[Order] = []
    parcel: "Parcel | None" = None
    group = "order:{order}"

    def handle(self):
        seen.append((self.order.article, [each.article for each in self.others], self.parcel))


class LabelOnLoop(Queueable):
    order: Order

    async def handle(self):
        seen.append(self.order.article)

    async def failed(self, error):
        seen.append((str(self.order), str(error)))


class Skip(LabelOnLoop):
    missing = "skip"


class Retry(LabelOnLoop):
    missing = "retry"
    tries = 2


class LabelOnce(LabelOnLoop):
    unique = True

    def unique_id(self):
        return self.order.id


class LabelAll(Queueable):
    order: Order
    others: list[Order]

    def handle(self):
        seen.append((self.order.article, [each.article for each in self.others]))


class Find(Queueable):
    article: str
    track = True

    def handle(self) -> Order:
        return Order.objects.get(article=self.article)


@queueable(track=True)
def find_all() -> list[Order]:
    return [*Order.objects.order_by("pk")]


class Guarded(Queueable):
    """Its middleware sees the row."""

    order: Order

    @staticmethod
    def see(job, call_next):
        seen.append(job.order.article)
        return call_next(job)

    def middleware(self):
        seen.append(self.order.pk)
        return [self.see]

    def handle(self):
        pass


@override_settings(QFRAME=SETTINGS)
class Travelling(TestCase):
    databases = {"default", "other"}

    def setUp(self):
        seen.clear()
        self.order = Order.objects.create(article="tea")
        self.cup = Order.objects.create(article="cup")

    def test_only_keys_travel(self):
        payload = envelope.create(Label(order=self.order, others=[self.cup]))
        assert payload["data"] == {"order": self.order.pk, "others": [self.cup.pk], "parcel": None}
        assert payload["models"] == {
            "order": "shop.Order", "others": "shop.Order[]", "parcel": "shop.Parcel",
        }  # fmt: skip
        assert payload["group"] == f"order:{self.order.pk}"
        shown = json.loads(shown_payload(json.dumps(payload).encode()))["data"]
        assert shown["order"] == f"shop.Order:{self.order.pk}"
        assert shown["others"] == [f"shop.Order:{self.cup.pk}"]

    def test_rows_are_loaded_as_they_are_when_the_job_starts_one_query_for_a_model(self):
        dispatch(Label(order=self.order, others=[self.cup, self.order])).send()
        Order.objects.filter(pk=self.order.pk).update(article="coffee")
        with self.assertNumQueries(1):
            assert drain().done == 1
        assert seen == [("coffee", ["cup", "coffee"], None)]

    def test_wherever_a_job_runs(self):
        dispatch_sync(LabelOnLoop(order=self.order))
        run(LabelOnLoop(order=self.order)).assert_done()
        run(Label(order=self.order), with_middleware=False).assert_done()
        chain([LabelOnLoop(order=self.order), LabelOnLoop(order=self.cup)]).dispatch()
        assert drain().done == 2
        assert seen == ["tea", "tea", ("tea", [], None), "tea", "cup"]

    async def test_on_an_event_loop_that_runs(self):
        ran = run(LabelOnLoop(order=self.order))
        assert (ran.outcome, seen) == ("done", ["tea"])
        await sync_to_async(dispatch_sync)(Label(order=self.order))
        dispatch_sync(Label(order=self.order))

    def test_middleware_has_the_row(self):
        run(Guarded(order=self.order)).assert_done()
        assert seen == [self.order.pk, "tea"]

    def test_an_unsaved_one_is_refused_where_it_is_dispatched(self):
        for unsaved in (Order(article="x"), Order(pk=self.order.pk)):
            with self.assertRaisesMessage(InvalidJob, "Label.order: the shop.Order is not saved"):
                dispatch(Label(order=unsaved))
        self.cup.delete()
        with self.assertRaisesMessage(InvalidJob, "is not saved"):
            dispatch(Label(order=self.order, others=[self.cup]))

    def test_a_key_can_be_given_in_place_of_the_row(self):
        dispatch(Label(order=str(self.order.pk))).send()
        assert drain().done == 1
        with self.assertRaisesMessage(InvalidJob, "order: should be a saved shop.Order, or its"):
            Label.dispatch(order="tea")

    def test_a_fake_shows_jobs_whose_rows_equal(self):
        with fake() as queued:
            Label.dispatch(order=self.order)
            chain([Label(order=self.cup), Label(order=self.order)]).dispatch()
            queued.assert_dispatched(Label, where=lambda job: job.order == self.order)
            first, second = queued.chains[0].jobs
            assert first.order == self.cup
            assert second.order == self.order != first.order

    def test_a_row_of_another_database_comes_from_there(self):
        there = Order.objects.using("other").create(pk=self.order.pk, article="there")
        payload = envelope.create(Label(order=there))
        assert payload["data"]["order"] == {"key": there.pk, "using": "other"}
        assert payload["group"] == f"order:{there.pk}@other"
        assert f"shop.Order@other:{there.pk}" in shown_payload(json.dumps(payload).encode())
        dispatch(Label(order=there, others=[self.order])).send()
        assert drain().done == 1
        assert seen == [("there", ["tea"], None)]

    def test_an_unknown_database_says_so(self):
        ran = run(Label(order={"key": 1, "using": "moon"}))
        assert "the database 'moon', which this worker's DATABASES has not" in str(ran.error)

    def test_flows_hand_on_keys(self):
        flow = Flow("labels")
        first, every = flow.add(Find(article="cup")), flow.add(find_all.job())
        mapped = flow.map(LabelOnLoop, over=every.result)
        flow.add(LabelAll(order=first.result, others=every.result), after=[mapped])
        flow.dispatch()
        assert drain().failed == 0
        assert sorted(seen[:-1]) == ["cup", "tea"]
        assert seen[-1] == ("cup", ["tea", "cup"])

    def test_a_result_that_is_a_row_is_its_key(self):
        one, many = bulk([Find(article="tea"), find_all.job()])
        drain()
        found = wait_for(one, 5).result
        assert (found, found.id, str(found)) == (
            self.order, self.order.pk, f"shop.Order:{self.order.pk}",
        )  # fmt: skip
        assert wait_for(many, 5).result == [self.order, self.cup]
        assert wait_for(str(one), 5).result == self.order.pk

    def test_batches_bulks_and_unique_ones(self):
        bulk([LabelOnLoop(order=self.order), LabelOnLoop(order=self.cup.pk)])
        batch([LabelOnLoop(order=self.cup)]).then(LabelOnLoop(order=self.order)).dispatch()
        first = dispatch(LabelOnce(order=self.order)).send()
        assert dispatch(LabelOnce(order=self.order.pk)).send() == first
        assert drain().failed == 0
        assert sorted(seen) == ["cup", "cup", "tea", "tea", "tea"]


@override_settings(QFRAME=SETTINGS)
class Missing(TestCase):
    def setUp(self):
        seen.clear()
        self.order = Order.objects.create(article="tea")

    def test_the_job_fails_at_once_and_its_hook_has_the_key(self):
        job = LabelOnLoop(order=self.order)
        key = self.order.pk
        dispatch(job).send()
        self.order.delete()
        assert drain().failed == 1
        ((shown, error),) = seen
        assert shown == f"shop.Order:{key}"
        assert error.startswith(f"shop.Order:{key} is gone, or was not committed yet: ")

    def test_or_is_skipped(self):
        ran = run(Skip(order=0))
        assert (ran.outcome, ran.reason) == ("skipped", "shop.Order:0 is gone")

    def test_or_is_retried_after_a_moment_until_its_tries_are_used_up(self):
        ran = run(Retry(order=0))
        ran.assert_retried()
        assert 0 < ran.delay < 1
        assert run(Retry(order=0), attempts=2).outcome == "failed"
        assert isinstance(ran.error, ModelMissing)

    def test_one_of_several_counts_like_a_single_one(self):
        run(Label(order=self.order, others=[self.order.pk, 0])).assert_failed_with(ModelMissing)


class Tables(TransactionTestCase):
    def test_keys_of_any_type_and_rows_that_the_manager_hides(self):
        with connection.schema_editor() as schema:
            schema.create_model(Parcel)
        try:
            parcel = Parcel()
            parcel.save()
            seen.clear()
            with override_settings(QFRAME=SETTINGS):
                order = Order.objects.create(article="tea")
                payload = envelope.create(Label(order=order, parcel=parcel))
                assert payload["data"]["parcel"] == str(parcel.pk)
                run(Label(order=order, parcel=parcel)).assert_done()
            assert seen == [("tea", [], parcel)]
        finally:
            with connection.schema_editor() as schema:
                schema.delete_model(Parcel)

    def test_keys_of_several_columns(self):
        if not hasattr(models, "CompositePrimaryKey"):  # Django before 5.2
            return

        class Place(models.Model):
            pk = models.CompositePrimaryKey("row", "seat")
            row = models.IntegerField()
            seat = models.CharField(max_length=5)

            class Meta:
                app_label = "shop"

        class Sit(Queueable):
            place: Place
            others: list[Place] = []
            job_name = "sit"

            def handle(self):
                return [self.place.seat, *(each.seat for each in self.others)]

        with connection.schema_editor() as schema:
            schema.create_model(Place)
        try:
            a, b = (Place.objects.create(row=1, seat=seat) for seat in "ab")
            with override_settings(QFRAME=SETTINGS):
                job = Sit(place=a, others=[b, a])
                assert envelope.create(job)["data"] == {
                    "place": [1, "a"],
                    "others": [[1, "b"], [1, "a"]],
                }
                assert run(job).result == ["a", "b", "a"]
        finally:
            with connection.schema_editor() as schema:
                schema.delete_model(Place)
