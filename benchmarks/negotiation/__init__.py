"""negotiation: what a steady step costs rank 0. The C++ program beside this file runs worlds of up to 128 ranks in
virtual time; __main__.py prints what it measured.
"""
