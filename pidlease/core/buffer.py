"""The type of bytes in any container."""

Buffer = bytes | bytearray | memoryview
