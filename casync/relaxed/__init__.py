"""Synchronisation every so many steps, in place of every step: local SGD and DiLoCo.

Each rank trains alone for some steps; what its parameters have changed by is then averaged over the ranks, under any
codec. An adaptor says where a step ends and where the parameters are. All else is here, and imports no framework.
"""
