"""Jobs on the GPUs of a Ray cluster: a queue, one foreground and one background per GPU, a history.

client          interface for users: submit, status, cancel
head            the actor that keeps the queue and starts jobs by the placement (scheduling/placement.py)
driver          the actor of one job: a training with its processes on the cluster
runtime         the actor of one GPU, which starts the processes of its jobs
gpus            the GPUs that Ray has, and the runtimes on them
history         records of all jobs, in a folder
ray_connection  imports Ray where it is needed, starts it on this machine, joins it by address
ray_host        the process that runs Ray on this machine
ray_launcher    starts the processes of a job on the GPUs of the cluster
"""
