"""An accelerator that is not here: launches return before their work is done, and values are really computed.

``emulated`` takes this machine's time, and computes in threads. ``emulated:h200`` is a GPU of a data sheet, in virtual
time: it takes the seconds that an H200 is estimated to take, and shares its multiprocessors as one does.

device       EmulatedDevice: the device as the other packages see it
runtime      the parts of a device, and the streams of its threads
tensor       tensors of the device, and their operators
registration its factories, as torch calls them
signature    which arguments of an operator are read, and which are written
shapes       shapes of an operator's results, before it has run
memory       caching allocator: a pool for each stream
shared_pool  a pool that several streams share
scheduler    queues of streams, their events, and the threads that compute, in the machine's time
virtual_scheduler  the same in front of a GPU's multiprocessors, in virtual time
host_time    virtual time of the threads that launch
kernel_costs an operator to its thread blocks and seconds, by a data sheet
hazards      accesses of two streams to one storage, without an event between
host_transfer  collectives, by gloo
graph        capture and replay

Emulated: asynchronous launches; streams of two priorities, of which waiting kernels of the high one start first while
running ones continue; events with the times at which a stream reached them; graphs at fixed addresses; memory that is
reused as soon as the host has released it; errors of kernels that show at the next wait; a launch queue of limited
length; of a data sheet also thread blocks, shares of multiprocessors, and what launches cost the host. Not emulated:
NCCL, pinned memory, caches, and several devices of one kind in a process. Its tensors are on torch's device
``privateuseone``. Every number from it is emulated.
"""
