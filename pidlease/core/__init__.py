"""Pure rules: no clock, no I/O, no asyncio. Everything here is a function of its arguments."""
