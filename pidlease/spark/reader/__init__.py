"""Reading logs in parts, one for each task; nothing here depends on Spark."""
