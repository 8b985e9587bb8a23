"""What users hold: `Client` and `AsyncClient`, searches by key, what nodes answer."""
