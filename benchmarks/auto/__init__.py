"""Whether `compression="auto"` is as fast as the best of its candidates, over several models and links."""
