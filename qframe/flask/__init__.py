"""qframe in a Flask application: `QFrame(app)`, settings under `app.config["QFRAME"]`.

Needs `pip install 'qframe[flask]'`.
"""

from qframe.exceptions import ConfigurationError

try:
    from qframe.flask.extension import QFrame
    from qframe.flask.page import page
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "qframe":
        raise
    raise ConfigurationError(
        f"qframe.flask needs {error.name}: pip install 'qframe[flask]'"
    ) from None

__all__ = ["QFrame", "page"]
