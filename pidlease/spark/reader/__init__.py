"""Reading logs in parts, one for each of Spark's tasks; of Spark itself nothing is known here."""
