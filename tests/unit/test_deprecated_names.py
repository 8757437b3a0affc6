"""Names that moved go on working, and say where they are now."""

import importlib

import pytest

import pidlease.copier
import pidlease.spark.topic_copy


@pytest.mark.parametrize(
    ("old", "name", "now"),
    [
        ("pidlease.client.copier", "Copier", pidlease.copier.Copier),
        ("pidlease.client.copier", "CopySettings", pidlease.copier.CopySettings),
        ("pidlease.client.copier", "CopyError", pidlease.copier.CopyError),
        ("pidlease.spark.copying", "copy", pidlease.spark.topic_copy.copy),
    ],
)
def test_old_name_with_a_warning(old: str, name: str, now: object) -> None:
    module = importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match="is now pidlease"):
        assert getattr(module, name) is now


@pytest.mark.parametrize("old", ["pidlease.client.copier", "pidlease.spark.copying"])
def test_unknown_name(old: str) -> None:
    module = importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match="is now"), pytest.raises(AttributeError):
        _ = module.no_such_name
