"""The rebuild: what a server knows of producers, made from its log."""

from pidlease.spark.rebuild.log_fold import fold_sends
from pidlease.spark.rebuild.snapshot_rebuild import Rebuilt, rebuild

__all__ = ["Rebuilt", "fold_sends", "rebuild"]
