"""Running a job's items on Spark or in one process, and its report."""
