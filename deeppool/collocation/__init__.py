"""A background job in the gaps that the foreground leaves.

background   the process of one background job
guest        what it trains there: a training on one rank
pieces       cuts its model into short pieces
throttle     holds it back before each of them
spinner      keeps a core awake, for the baseline
neighbours   the background jobs of all ranks of a measurement, and what they got done
queue        background jobs of the user's, and who is next
host         starts, watches and ends them beside a training
stay         what a job has done, and one process of it
containment  when one of them must go
"""
