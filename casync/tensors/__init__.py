"""How an adaptor describes its framework's tensors, and what ranks must agree on for an operation."""

from casync.tensors.adaptor import T, Tensors, about, adaptor_of, register

__all__ = ["T", "Tensors", "about", "adaptor_of", "register"]
