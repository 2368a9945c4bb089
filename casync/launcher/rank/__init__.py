"""The program between mpirun, or another starter, and the command of a rank.

It runs on each rank before anything else, by its path and without site-packages, so that it starts soon: `wire` is what
it says to casyncrun and hears of it, `join` how it gets there, `place` where in the job it is, `supervisor` runs the
command, and `guard` sees that nothing is left behind.
"""
