"""Layer times: measured on a device, or estimated and marked so.

table      Profile: times of every layer at several per-GPU batches, a plain record
iteration  one iteration of a model, with a stamp of the time between the layers
spread     how many iterations are enough, and which of them count
store      what an interrupted measurement keeps
bench      a model on a device, iteration after iteration
company    other cores that train at the same time; company_rank is the process of one
measure    a captured model → Profile, on the device at hand
check      the layers against the whole iteration, the line against the largest batch
compare    which layers changed between two profiles, beyond noise
shipped    profiles that come with deeppool, by name
network    ranks of this machine, or of several → Cluster: its links and all-reduces, measured
patterns   what each of those ranks does; network_rank is the process of one
estimate   a model and a GPU's data sheet → Profile, with no GPU
work       a layer → its kernels, on tensors without data
kernels    an operator → its kernels, their FLOPs and bytes
roofline   seconds of a kernel from a data sheet
pairs      synthetic kernels beside one another, measured
"""
