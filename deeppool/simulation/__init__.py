"""Plans, and devices that two jobs share, on a virtual clock.

replay         a plan → Simulation: iteration time and per-GPU timeline, with a background in the gaps
collocated     one device, a foreground and a background: what each mechanism of sharing costs and brings
interference   measured: how fast kernels go beside one another
"""
