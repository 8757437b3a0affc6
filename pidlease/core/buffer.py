"""The type of bytes in any container: bytes, bytearray, memoryview."""

Buffer = bytes | bytearray | memoryview
