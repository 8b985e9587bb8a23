"""cluster.toml: sections, sources, checks, generated pages."""
