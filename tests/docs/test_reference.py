"""The pages that are made from the code are those that would be made now."""

import pytest

from deploy.reference.__main__ import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_would_be_made_now(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name](), "make reference makes it anew"
