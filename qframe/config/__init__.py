"""Settings, and what loads them. Each driver's own are in its folder."""

from qframe.config.alerts import AlertSettings, CommandSettings, MailSettings, WebhookSettings
from qframe.config.connection import ConnectionSettings, validated
from qframe.config.files import FILE, Origin, find, read
from qframe.config.framework import framework
from qframe.config.loading import here, load
from qframe.config.places import Places, QueuePlace
from qframe.config.sections import (
    BinSettings,
    GroupSettings,
    OtelSettings,
    OutboxSettings,
    PlaceSettings,
    QueueSettings,
    ScheduleSettings,
    WebSettings,
)
from qframe.config.settings import BUILT_IN, Settings
from qframe.config.supervisors import SupervisorSettings
from qframe.config.values import describe

__all__ = [
    "BUILT_IN",
    "FILE",
    "AlertSettings",
    "BinSettings",
    "CommandSettings",
    "ConnectionSettings",
    "GroupSettings",
    "MailSettings",
    "Origin",
    "OtelSettings",
    "OutboxSettings",
    "PlaceSettings",
    "Places",
    "QueuePlace",
    "QueueSettings",
    "ScheduleSettings",
    "Settings",
    "SupervisorSettings",
    "WebSettings",
    "WebhookSettings",
    "describe",
    "find",
    "framework",
    "here",
    "load",
    "read",
    "validated",
]
