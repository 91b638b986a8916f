"""Found where the real package would be."""
