"""CompLL: gradient compression algorithms in a few lines of a C-like language (docs/compll.md)."""
