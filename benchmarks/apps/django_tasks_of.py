"""The task that a Django request enqueues."""

from django.tasks import task


@task  # type: ignore[untyped-decorator] # Django has no types
def ship(order: int) -> None:
    """Ship an order."""
