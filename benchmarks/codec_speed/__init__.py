"""codec_speed: what codecs cost on one core. The C++ program beside this file compares them with memcpy and with bare
loops, __main__.py with the same algorithms in plain torch operations.
"""
