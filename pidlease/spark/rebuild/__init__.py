"""The rebuild: the state of all producers, made from the log alone."""

from pidlease.spark.rebuild.log_fold import fold_sends
from pidlease.spark.rebuild.snapshot_rebuild import Rebuilt, rebuild

__all__ = ["Rebuilt", "fold_sends", "rebuild"]
