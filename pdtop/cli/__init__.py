"""The command line: parse, call, print.

``app`` holds the entry point and the verbs that look, ``changes`` those that change a cluster, ``operating``
gives these a watched cluster and its gate. ``verbs`` takes one change from its plan to an exit code over
``terminal`` (what is printed and asked) in the words of ``printed``; ``headless`` is ``apply --watch``.
``routing`` runs a router, ``engine_check`` says what one does with a file.
"""

from pdtop.cli.app import main

__all__ = ["main"]
