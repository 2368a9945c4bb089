"""resources: processor time of an idle and of a waiting job, and memory beyond the gradients. See __main__.py."""
