"""How the ranks of a job find each other, and prove that they belong to it.

This file imports none of the package's modules, so a rank that writes a line to casyncrun does not load the stores.
"""
