"""Processes: started, watched, and ended with everything that they started.

managed_process      a process that takes commands and answers, as JSON lines
fork_server          the process that imports torch once and forks workers
before_forks         what a fork server does once, before it forks
fork_server_client   starts a fork server and requests processes from it
launcher             where the ranks of a run start; LocalLauncher for this machine
gpu_probe            the GPUs of this machine that compute
cleanup_watchdog     removes folders and control groups, even if their process is killed
rank_group           all ranks of a run, started and commanded together
heartbeat            reports the current activity of a rank every second
hang_detector        finds the rank that no longer makes progress
end_of_processes     waits until processes have ended
stop_detector        finds processes that a signal has stopped
failure_attribution  finds the rank that failed first, and makes the error message
shared_page          shared memory between a foreground rank and its background
clock_offset         the offset between two machines' clocks
meeting_point        where the ranks of several machines meet: a store, and the interface that leads to it
worker_sockets       sockets of loader workers where TMPDIR is too long for them
wakeup_pipe          wakes a waiting background
torchrun/            starts ranks through the processes of torchrun
"""
