"""The only door to files: disk, mappings, descriptors, packed values."""
