"""A background job in the gaps that the foreground leaves.

background      the process of one background job
guest           what it trains there: a training on one rank
pieces          a step cut so short that it can be stopped soon
throttle        holds a background back before each piece, as its gate says
phases          what a foreground does now, by its device
home            where a background runs, and why
lodger          a background in the process of a rank: what it trains
hosting_rank    the process of such a rank
lodgers         those of all ranks of a measurement
captured_step   a training step in pieces that a GPU repeats one by one
lane            a stream behind a gate: the background beside graphs on a GPU
spinner         keeps a core awake, for the baseline
neighbours      the background jobs of all ranks of a measurement, and what they got done
queue           background jobs of the user's, and who is next
host            starts, watches and ends them beside a training
stay            what a job has done, and one process of it
containment     when one of them must go
"""
