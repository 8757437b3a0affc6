"""Settings, and what each component gets of them."""
