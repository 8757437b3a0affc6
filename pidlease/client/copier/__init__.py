"""Copies topics between clusters: each record of the source exactly once at the destination."""

from pidlease.client.copier.copier import Copier
from pidlease.client.copier.errors import CheckpointError, CopierFencedError, CopyError
from pidlease.client.copier.settings import CopySettings

__all__ = ["CheckpointError", "Copier", "CopierFencedError", "CopyError", "CopySettings"]
