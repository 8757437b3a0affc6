"""The settings, and the components' configurations made of them."""
