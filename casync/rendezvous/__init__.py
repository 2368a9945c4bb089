"""How the ranks of a job find each other, and prove that they belong to it.

It hands nothing on: a rank that writes a line to casyncrun does not load the stores.
"""
