"""Loads the profile of the property tests."""

from hypothesis import settings

from tests.property.profile import PROFILE

settings.load_profile(PROFILE)
