"""The audit: what stands in a log, held against the rules that its producers are under."""

from pidlease.spark.audit.auditing import Audit, Totals, audit
from pidlease.spark.audit.summing import Summary, summary
from pidlease.spark.audit.writing import write_audit

__all__ = ["Audit", "Summary", "Totals", "audit", "summary", "write_audit"]
