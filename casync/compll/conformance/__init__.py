"""The conformance kit behind `casync compll test`: what a codec promises, tried on a codec as training uses it.

It knows the codec contract and nothing else, so it tests codecs of any kind: generated, written in C++, with state,
with several rounds. `checks` has a function for each promise; `world` aggregates over virtual ranks.
"""
