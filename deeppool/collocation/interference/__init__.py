"""How fast a kernel goes beside another: synthetic kernels, two at a time, on the device at hand.

synthetic  kernels by arithmetic intensity and duration
on_cpu     two processes, on one core or two; worker is the process of each
on_gpu     two streams of one process
rounds     all pairs in turn, several times → rates as parts of alone
waits      what a background gets of a foreground's waits, by their length; training is the process of each
transfers  what backgrounds get inside all-reduces; rank is the process of each that moves

``deeppool.collocation.interference.measure`` makes a record of it.
"""
