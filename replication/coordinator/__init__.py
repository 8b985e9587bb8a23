"""The coordinator, the process that keeps the register, and its clients."""
