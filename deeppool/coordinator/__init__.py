"""Jobs on the GPUs of a cluster, by Ray: a queue, one foreground and one background a GPU, a history.

engine     Ray itself: imported where it is needed, started on this machine, joined by address
client     what users hold: submit, status, cancel
head       the actor that keeps the queue and starts what the placement says (scheduling/placement.py)
gpus       the GPUs that Ray has, and the runtimes on them
driver     the actor of one job: a training as on one machine, with its processes on the cluster
ray_place  where those processes are, seen from the driver
runtime    the actor of one GPU, whose children they are
history    what is known of each job, in a folder
"""
