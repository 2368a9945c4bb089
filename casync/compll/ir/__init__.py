"""What a checked file becomes before code of any target is written: graphs of values, and programs of steps."""
