"""The process that keeps the register, and its clients."""
