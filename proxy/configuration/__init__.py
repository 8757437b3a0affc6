"""The server's settings, and the components' configurations made from them."""
