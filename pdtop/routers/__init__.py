"""One module per router dialect: how to detect it, read it and what it cannot tell."""
