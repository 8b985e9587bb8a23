"""Reading running nodes for Spark."""
