"""The audit: it checks all sends of a log against the rules of their policies."""

from pidlease.spark.audit.audit_report import write_audit
from pidlease.spark.audit.audit_summary import Summary, summary
from pidlease.spark.audit.log_audit import Audit, Totals, audit

__all__ = ["Audit", "Summary", "Totals", "audit", "summary", "write_audit"]
