"""Transfers between GPUs: schedules as data, priced by ``costs``, performed by ``execution``.

buckets   which gradients one all-reduce sums
layout    Layout: which samples of a global batch lie on which GPU
reshard   the transfers from one layout to another
"""
