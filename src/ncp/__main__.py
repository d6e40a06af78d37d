"""The program as a process of its own: `ncp`, or `python -m ncp` where that is not on the path.

What is imported lives to the end: to search it for garbage takes a tenth of a short run, to take it
all down again a fifth. So garbage is searched for seldom, and the process ends without that.
"""

import atexit
import gc
import os
import sys
from contextlib import suppress

__all__ = ["program"]


def program() -> None:
    """Run `ncp` with the arguments of this process, and end it."""
    gc.set_threshold(100_000, 50, 50)
    from ncp.cli import app

    code = app()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # `app` has said what cannot be written
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
