"""config.toml: schema, loading with all errors at once, watching."""
