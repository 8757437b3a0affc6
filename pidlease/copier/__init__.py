"""Copies topics between clusters: each record of the source exactly once at the destination."""

from pidlease.copier.copier import Copier
from pidlease.copier.errors import CheckpointError, CopierFencedError, CopyError
from pidlease.copier.settings import CopySettings

__all__ = ["CheckpointError", "Copier", "CopierFencedError", "CopyError", "CopySettings"]
