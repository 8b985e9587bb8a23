"""Reading a store directory for Spark."""
