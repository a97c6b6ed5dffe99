"""The queue's tables, and the models for permissions."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from qframe.django.tables import MakeTables


class Migration(migrations.Migration):
    """Makes the tables if a connection of qframe's is in the database."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="FailedJob",
            fields=[
                ("uuid", models.CharField(max_length=200, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "failed job",
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.CharField(max_length=128, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name_plural": "queues and workers",
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        MakeTables(),
    ]
