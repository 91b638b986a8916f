"""config.toml: schema, loading with all errors at once, watching, byte-preserving edits."""
