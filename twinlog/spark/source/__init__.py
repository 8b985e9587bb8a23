"""The data source `format("twinlog")`: batch and streaming reads."""
