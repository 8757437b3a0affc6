"""Bytes, wherever they lie."""

Buffer = bytes | bytearray | memoryview
