"""The settings. What is in SHOP_ variables is for its tests, which have servers of their own."""

import importlib.util
import json
import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("SHOP_FOLDER", BASE_DIR))
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for the example")
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
FORM_RENDERER = "django.forms.renderers.DjangoTemplates"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "qframe.django",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(FOLDER / "shop.sqlite3"),
        "OPTIONS": {"timeout": 20},
        "TEST": {"NAME": str(FOLDER / "test_shop.sqlite3")},
    }
}
QFRAME = {
    "default": "database",
    "connections": {"database": {"driver": "database", "django": "default"}},
}
TASKS = {"default": {"BACKEND": "qframe.django.tasks.QframeBackend", "QUEUES": []}}

if "SHOP_OTHER" in os.environ:  # a second database
    other = {
        "NAME": str(FOLDER / "other.sqlite3"),
        "TEST": {"NAME": str(FOLDER / "test_other.sqlite3")},
    }
    DATABASES["other"] = {**DATABASES["default"], **other}
if "SHOP_DATABASES" in os.environ:
    DATABASES = json.loads(os.environ["SHOP_DATABASES"])
if "SHOP_QFRAME" in os.environ:
    QFRAME = json.loads(os.environ["SHOP_QFRAME"])
if importlib.util.find_spec("django.tasks") is None:  # Django 4.2 to 5.2, with its backport
    INSTALLED_APPS.append("django_tasks")
