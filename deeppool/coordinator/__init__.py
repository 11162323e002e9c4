"""Jobs on the GPUs of a Ray cluster: a queue, one foreground and one background per GPU, a history.

client          what users hold: submit, status, cancel
head            the actor that keeps the queue and starts what the placement decides (scheduling/placement.py)
driver          the actor of one job: a training as on one machine, with its processes on the cluster
runtime         the actor of one GPU, which starts the processes of its jobs
gpus            the GPUs that Ray has, and the runtimes on them
history         what is known of each job, in a folder
ray_connection  imports Ray where it is needed, starts it on this machine, joins it by address
ray_host        the process that holds a Ray of this machine
ray_launcher    starts the processes of a job on the GPUs of the cluster
"""
