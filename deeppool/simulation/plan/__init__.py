"""One plan on a virtual clock.

simulate         dp.simulate: iteration time and timeline per GPU
conditions       slow GPUs, stragglers, slow links
stragglers       iterations under such conditions: which rank waits for which
collocated_plan  a background beside every GPU of a plan
fidelity         Fidelity: the errors of a simulation against a live run
"""
