"""The programs of examples/, killed in the middle, and what they stored counted."""
