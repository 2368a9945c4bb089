"""step_time: one data-parallel step on slow links, CaSync beside DDP/gloo. See __main__.py."""
