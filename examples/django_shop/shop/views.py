"""The pages of the shop."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from shop.jobs import Ship
from shop.models import Order
from shop.tasks import count, receipt


@csrf_exempt
def place(request: HttpRequest) -> JsonResponse:
    """Place an order; with `fail` the transaction is rolled back, and nothing is queued."""
    article = request.POST["article"]
    try:
        with transaction.atomic():
            order = Order.objects.create(article=article)
            job = Ship.dispatch(order=order.pk).track().id
            task = receipt.enqueue(order=order.pk)
            if "fail" in request.POST:
                raise ValueError("no money")
    except ValueError:
        return JsonResponse({"job": job}, status=402)
    return JsonResponse({"order": order.pk, "job": job, "task": task.id})


async def place_async(request: HttpRequest) -> JsonResponse:
    """Place an order in an async view."""
    order = await Order.objects.acreate(article=request.POST["article"])
    job = await Ship.dispatch(order=order.pk).track()
    task = await receipt.aenqueue(order=order.pk)
    return JsonResponse({"order": order.pk, "job": job, "task": task.id})


place_async.csrf_exempt = True  # the decorator takes async views from Django 5.0 on


def show(request: HttpRequest, number: int) -> JsonResponse:
    """Show an order."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"shipped": order.shipped, "receipt": order.receipt})


def report(request: HttpRequest) -> JsonResponse:
    """Give the result of a task; begin one where none is named."""
    if "task" not in request.GET:
        return JsonResponse({"task": count.enqueue().id})
    result = count.get_result(request.GET["task"])
    value = result.return_value if result.is_finished else None
    return JsonResponse({"status": result.status, "value": value})
