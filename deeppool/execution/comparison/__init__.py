"""Ways of training, measured on the same live ranks by turns, so that a change of the machine affects all alike.

turns  starts the ranks, and measures rounds of each way, one way after the other, again and again
ways   the ways of one rank, by name, and the commands that make and train them
"""
