"""Deploys, as people see them: when another version began to run."""

from __future__ import annotations

from pydantic import BaseModel

from qframe.metrics.deploys import Deploy
from qframe.payload.timing import iso


class DeployState(BaseModel):
    """One deploy."""

    at: str
    version: str
    text: str
    seconds_ago: float

    @classmethod
    def of(cls, deploy: Deploy, now: float) -> DeployState:
        ago = max(0.0, now - deploy.at)
        return cls(at=iso(deploy.at), version=deploy.version, text=deploy.text, seconds_ago=ago)
