"""What an operator asks on the command line, beside `serve`: `status` and `verify`."""
