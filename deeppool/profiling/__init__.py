"""Layer times: measured on a device, or estimated and marked so.

table     Profile: times of every layer at several per-GPU batches, a plain record
measure   a captured model → Profile, on the device at hand
store     what an interrupted measurement keeps
"""
