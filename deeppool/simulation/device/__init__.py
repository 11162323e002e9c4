"""One device shared by a foreground and a background, on a virtual clock.

collocated    slowdown and harvest under each sharing mechanism
interference  Interference: measured rates of kernels beside one another
idle_harvest  IdleHarvest: background work done while a foreground waits
"""
