"""gpu: what the way of a GPU's tensors through the host's memory costs, at one rank. See __main__.py."""
