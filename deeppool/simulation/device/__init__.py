"""One device shared by a foreground and a background, on a virtual clock.

collocated    what each sharing mechanism costs and brings
interference  Interference: measured rates of kernels beside one another
idle_harvest  what a background gets done while a foreground waits
"""
