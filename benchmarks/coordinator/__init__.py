"""coordinator: a step of PS with the local and with the global coordinator. See __main__.py."""
