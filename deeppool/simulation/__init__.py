"""Plans, devices that two jobs share, and clusters of many jobs, on a virtual clock.

replay            a plan → Simulation: iteration time and per-GPU timeline, with a background in the gaps
conditions        slow GPUs, stragglers, slow links
varied            iterations of a plan under them: who waits for whom
collocated        one device, a foreground and a background: what each mechanism of sharing costs and brings
interference      measured: how fast kernels go beside one another
                  (measured_interference measures it on this machine)
collocated_plan   a background beside every GPU of a plan
against           a plan's simulation beside a live run of it → Fidelity
fidelity          the record

cluster           a workload trace → ClusterSimulation: jobs arrive, are placed, train beside one another, finish
workload          the trace, and drawn ones
pricing           what its jobs cost, alone and beside one another
cluster_engine    the events
cluster_jobs      what each job has still to train
history           what happened, as it is told
cluster_record    the record
comparison        a workload by every strategy → ClusterComparison
scenarios         a foreground data parallel, burst parallel, and with backgrounds in its gaps → ThreeScenarios
"""
