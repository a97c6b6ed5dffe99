"""What the admin lists: models without tables, for permissions."""

from __future__ import annotations

from django.db import models


class FailedJob(models.Model):
    """A failed job, in any store. `change` is to retry, `delete` to forget."""

    uuid = models.CharField(primary_key=True, max_length=200)

    class Meta:
        """No table."""

        managed = False
        default_permissions = ("view", "change", "delete")
        verbose_name = "failed job"

    def __str__(self) -> str:
        return str(self.uuid)


class Queue(models.Model):
    """A queue. `view` is to see the page of all, `change` to act on it."""

    name = models.CharField(primary_key=True, max_length=128)

    class Meta:
        """No table."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name_plural = "queues and workers"

    def __str__(self) -> str:
        return str(self.name)
