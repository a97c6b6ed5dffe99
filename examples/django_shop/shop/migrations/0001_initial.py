"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes the table of orders."""

    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("article", models.CharField(max_length=100)),
                ("shipped", models.IntegerField(default=0)),
                ("receipt", models.CharField(default="", max_length=100)),
            ],
        ),
    ]
