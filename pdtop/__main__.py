"""``python -m pdtop``: the same as the ``pdtop`` command."""

from pdtop.cli import main

main()
