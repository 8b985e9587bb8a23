"""What a query reads, decided: options, columns, splits, selections. Pure."""
