"""The command line: parse, call, print; a file for each command or two."""

from ncp.cli.main import app

__all__ = ["app"]
