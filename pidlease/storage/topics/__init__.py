"""Definitions and settings of topics."""
