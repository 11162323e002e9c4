"""Profiles: layer times of a model, measured on a device, or estimated from a data sheet or a calibration.

table            Profile: times of every layer at several per-GPU batches
store            log of an interrupted measurement, and resuming from it
comparison       layers whose times differ between two profiles by more than noise
update_estimate  the optimizer's update, from memory bandwidth
iteration_check  sum of the layers against the whole iteration, and the extrapolation error
default_cluster  the cluster on which a profile is planned when none is named
shipped          profiles that come with deeppool, by name
measure          dp.profile: a captured model on this machine's device
calibrate        dp.calibrate: what kernels cost on this machine's device, for estimates
estimate         dp.estimate: a model and a GPU's data sheet or a calibration, without running the model
network          dp.measure_network: links and all-reduces between ranks
"""
