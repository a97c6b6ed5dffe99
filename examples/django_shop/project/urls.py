"""The addresses."""

from django.contrib import admin
from django.urls import include, path
from shop import views

urlpatterns = [
    path("admin/queues/", include("qframe.django.urls")),
    path("admin/", admin.site.urls),
    path("orders/", views.place),
    path("orders/async/", views.place_async),
    path("orders/<int:number>/", views.show),
    path("reports/", views.report),
]
