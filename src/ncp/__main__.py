"""`python -m ncp`, where the command `ncp` is not on the path."""

import sys

from ncp.cli import app

sys.exit(app())
