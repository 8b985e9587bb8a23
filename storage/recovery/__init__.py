"""Start, stop and cut: from the files of a store to its positions, and back."""
