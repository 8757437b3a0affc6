"""The audit: what stands in a log, held against the rules that its producers are under."""

from pidlease.spark.audit.audit_report import write_audit
from pidlease.spark.audit.audit_summary import Summary, summary
from pidlease.spark.audit.log_audit import Audit, Totals, audit

__all__ = ["Audit", "Summary", "Totals", "audit", "summary", "write_audit"]
