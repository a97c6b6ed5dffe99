"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and how often it was shipped: once, if all is well."""

    article = models.CharField(max_length=100)
    shipped = models.IntegerField(default=0)
    receipt = models.CharField(max_length=100, default="")
