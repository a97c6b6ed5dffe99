"""qframe in a Flask application: `QFrame(app)`, settings under `app.config["QFRAME"]`.

Needs `pip install 'qframe[flask]'`.
"""

from qframe.flask.extension import QFrame
from qframe.flask.page import page

__all__ = ["QFrame", "page"]
