"""Questions of others about a network: does any input of a region have an output of another?

VNN-LIB files become a `Query`; `verify` answers *unsat* by a proof, *sat* by a point that is confirmed exactly, or says
that it does not know. Numbers of the file stay fractions until they are rounded to the safe side.
"""
