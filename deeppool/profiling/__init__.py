"""Layer times: measured on a device, or estimated and marked so.

table     Profile: times of every layer at several per-GPU batches, a plain record
measure   a captured model → Profile, on the device at hand
network   ranks of this machine, or of several → Cluster: its links and all-reduces, measured
patterns  what each of those ranks does; network_rank is the process of one
store     what an interrupted measurement keeps
"""
