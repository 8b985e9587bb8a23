"""The register: the group's state and the operations that change it. Pure."""
